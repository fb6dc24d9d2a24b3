"""What a results file says of the model."""

from pathlib import Path
from typing import Any

from jaxscore.adapters.harness.arguments import Arguments
from jaxscore.adapters.harness.model import Made
from jaxscore.engine.provenance import commit
from jaxscore.version import VERSION


def info(made: Made, args: Arguments, noise: list[dict[str, Any]]) -> dict[str, Any]:
    """hf's keys of a model in the results file, and ours under `jaxscore`."""
    scorer = made.scorer
    local = made.folder is None or args.pretrained == "demo" or Path(args.pretrained).exists()
    cache = None if args.cache_dir is None else Path(args.cache_dir)
    sha = scorer.about.get("model", "") if local else commit(args.pretrained, args.revision, cache)
    facts = scorer.facts()
    out: dict[str, Any] = {
        "model_num_parameters": scorer.engine.planner.facts.n_parameters,
        "model_dtype": scorer.model.dtype,
        "model_revision": args.revision or "main",
        "model_sha": sha or "",
        "jaxscore": {
            "version": VERSION,
            **{name: scorer.about.get(name) for name in ("jax", "device_kind", "reproducible")},
            "implementation": scorer.model.implementation,
            "max_length": made.length,
            "tokens_given": facts["counts"]["tokens_given"],
            "tokens_computed": facts["counts"]["tokens_unique"],
            "plan": facts["plan"],
            **({"stored_as": facts["stored_as"]} if "stored_as" in facts else {}),
            **({"noise": noise} if noise else {}),
        },
    }
    if args.peft:
        out["peft_sha"] = args.peft
    return out
