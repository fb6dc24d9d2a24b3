"""A line for each thing that was found, as soon as it is."""


def say(good: bool | None, text: str) -> bool:
    """Print PASS or FAIL, or NOTE for None, where there is nothing to hold; whether it is no FAIL.

    Machines are paid by the second and calls are cut off, so every line is flushed.
    """
    word = "NOTE" if good is None else "PASS" if good else "FAIL"
    print(f"{word}  {text}", flush=True)
    return good is not False
