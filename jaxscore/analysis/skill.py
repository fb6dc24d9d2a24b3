"""Accuracy above chance."""


def skill(correct: bool, n_correct: int, n_choices: int) -> float:
    """(observed - chance) / (1 - chance) of one question, chance being n_correct / n_choices.

    1 is right, 0 what guessing gets on average, below 0 is wrong. Where every choice is correct
    nobody can be wrong, and it is 1.

    Raises:
        ValueError: unless 1 <= n_correct <= n_choices.
    """
    if not 1 <= n_correct <= n_choices:
        raise ValueError(f"{n_correct} correct of {n_choices} choices")
    if n_correct == n_choices:
        return 1.0
    chance = n_correct / n_choices
    return (float(correct) - chance) / (1.0 - chance)
