"""Command lines of `tools/golden.py`, by case, and the input files that they read.

A line is a jaxscore command, or a shell command if it starts with `$`. Each case runs in a separate
folder, which holds links to the repository's `jaxscore/`, `configs/` and `tests/`, and the
files of `write_inputs` in `in/`. Outputs go to the current folder.
"""

import json
from pathlib import Path
from typing import Any

TEXTS: list[dict[str, Any]] = [
    {"id": "a", "context": "Answer True or False.", "continuation": " True", "source": "x", "n": 1},
    {
        "id": "b",
        "context": "Answer True or False.",
        "continuation": " False",
        "source": "y",
        "n": 2,
    },
    {"id": "long", "context": "Oslo " * 3000, "continuation": " Norway", "source": "z", "n": 3},
    {"id": "c", "context": "Telford borders Merstad.", "continuation": " Örsadyne", "n": 4.5},
    {"id": "d", "context": "", "continuation": "Telford borders Merstad.", "source": None, "n": 5},
    {"id": "e", "context": "ANSWER:", "continuation": "\n Two  lines \u2028 here 🙂", "n": 6},
]
ITEMS: list[dict[str, Any]] = [
    {"id": "q1", "context": "Where?", "options": [" Oslo", " Rome"], "gold": 1, "set": "x"},
    {"id": "q2", "context": "Oslo " * 3000, "options": [" yes", " no"], "gold": " no", "set": "y"},
    {"id": "q3", "context": "Where?", "options": [" Oslo", " Rome", " Telford"], "category": "k"},
    {"id": "q4", "context": "A letter.", "options": ["yes", "no"], "gold": " no", "set": "z"},
]
DOCUMENTS = [
    {"id": "one", "text": "Telford borders Merstad. " * 40, "year": 1885},
    {"id": "empty", "text": "", "year": 1886},
    {"id": "two", "text": "Ölwick lies on the Torlode.\nGréborg borders Sölmere.", "year": 1887},
]
PATHS = [
    {"id": "p1", "question": "Where does Ada live?", "paths": [["Ada", "lives in", "Telford"], []]},
    {"id": "p2", "question": "Oslo " * 3000, "paths": [["Oslo", "borders", "Merstad"]]},
]
CODE = [{"question_id": "a", "confidence_list": [9.5, 8.1], "output": ["```python\nx\n```", "no"]}]

DEMO = "jaxscore/demo/inputs"
SCORE = "score --model demo --input in/texts.jsonl"
CHOOSE = "choose --model demo --input in/items.jsonl"
PERPLEXITY = "perplexity --model demo --input in/documents.jsonl --max-length 64"
DIVERGENCE = "divergence --model demo --reference demo --reference-dtype bfloat16"
EVALUATE_PATHS = f"paths --model demo --input {DEMO}/paths.jsonl"
CHRONOLOGIC = f"chronologic demo {DEMO}/chronologic.jsonl"
PROBSEM = f"probsem --model demo --prompt demo --input-dir {DEMO}/probsem"
SAMPLES = f"{DEMO}/self_certainty.json"
MEASURES = "--measures rank,varentropy,renyi2,top_k,min_k,min_k_pp,fast_detect --unit word"

CASES: dict[str, str] = {
    "score-fields": f"""
        {SCORE} --output plain.jsonl
        {SCORE} --output measures.jsonl {MEASURES}
        {SCORE} --output words.jsonl --unit word --log-base 10 --leading-blank skip --min-k 0.5
        {SCORE} --output summary.jsonl --summary-only --no-html --truncate left
        {SCORE} --output audited.jsonl --audit-noise 4 --boundary separate
        {SCORE} --output chat.jsonl --apply-chat-template --system "Be brief." --limit 4
        {SCORE} --output shots.jsonl --fewshot in/shots.jsonl --num-fewshot 1 --seed 3
        {SCORE} --output - --journal off --quiet
        {SCORE} --output int8.jsonl --quantize int8 --batch-tokens 256
        {SCORE} --output alone.jsonl --reproducible --html page.html --journal own.journal
    """,
    "score-tables": f"""
        {SCORE} --output table.csv {MEASURES}
        {SCORE} --output table.tsv
        {SCORE} --output table.parquet {MEASURES}
        score --model demo --input in/texts.parquet --output from-parquet.jsonl
        score --model demo --input in/texts.csv --output from-csv.parquet
        score --model demo --input in/texts.json --output from-array.csv --summary-only
        score --model demo --input in/renamed.tsv --column continuation=reply --output renamed.csv
        score --model demo --input in/saved --output from-saved.jsonl
    """,
    "choose": f"""
        {CHOOSE} --output plain.jsonl
        {CHOOSE} --output table.csv --pmi-context ""
        {CHOOSE} --output table.parquet --boundary separate --n-bootstrap 50 --seed 2
        choose --model demo --input in/items.parquet --output from-parquet.tsv --no-html
        choose --model demo --input in/items.csv --output from-csv.jsonl
        choose --model demo --input {DEMO}/choose.jsonl --output audited.jsonl --audit-noise 20
        {CHOOSE} --output - --quiet
        {CHOOSE} --output shots.jsonl --truncate left --limit 2
    """,
    "perplexity": f"""
        {PERPLEXITY} --output plain.jsonl
        {PERPLEXITY} --output table.csv --stride 16
        {PERPLEXITY} --output table.parquet --audit-noise 2
        perplexity --model demo --input in/folder --output folder.jsonl
        perplexity --model demo --input in/folder/a.txt --output file.tsv
        perplexity --model demo --input in/renamed.tsv --column text=reply --output renamed.jsonl
    """,
    "divergence": f"""
        {DIVERGENCE} --input in/texts.jsonl --output plain.jsonl
        {DIVERGENCE} --input in/texts.jsonl --output table.csv
        {DIVERGENCE} --input in/texts.csv --output table.parquet --summary-only
        divergence --model demo --reference demo --reference-quantize int8 \
            --input in/texts.jsonl --output int8.jsonl
    """,
    "paths": f"""
        {EVALUATE_PATHS} --output plain.json
        {EVALUATE_PATHS} --output joint.json --boundary joint --audit-noise 10
        {EVALUATE_PATHS} --output upstream.json --boundary upstream --limit 3
        {EVALUATE_PATHS} --output blank.json --answer-separator " " --system-prompts A B
        {EVALUATE_PATHS} --output shots.json --fewshot {DEMO}/paths.jsonl --num-fewshot 2
        {EVALUATE_PATHS} --output chat.json --apply-chat-template --limit 5
        paths --model demo --input in/paths.jsonl --output failing.json
        paths --model demo --input in/paths.csv --output - --quiet
        {EVALUATE_PATHS} --output other.name --no-html
    """,
    "chronologic": f"""
        {CHRONOLOGIC} --full-eval --output-dir full
        {CHRONOLOGIC} --full-eval --output-dir calibrated --calibrate --boundary upstream
        {CHRONOLOGIC} --mcq --output-dir mcq
        {CHRONOLOGIC} --mcq --output-dir negation --include-negation --no-shuffle --no-metadata
        {CHRONOLOGIC} --mcq --output-dir calibrated-mcq --calibrate --audit-noise 10
        {CHRONOLOGIC} --samples 3 --output-dir samples --seed 4
        {CHRONOLOGIC} --full-eval --output-dir chat --apply-chat-template --limit 4
        chronologic demo {DEMO}/chronologic.jsonl --mcq --output-dir shots \
            --fewshot {DEMO}/chronologic.jsonl --num-fewshot 2
    """,
    "probsem": f"""
        {PROBSEM} --test truth --output-dir truth
        {PROBSEM} --test letter --output-dir letter --norm --temp 0.5
        {PROBSEM} --test letter --output-dir joint --boundary joint --audit-noise 6
        {PROBSEM} --test truth --output-dir chat --apply-chat-template --answer-separator " "
        {PROBSEM} --test truth --output-dir limited --limit 2 --no-html
    """,
    "judge": f"""
        $ cp -r {DEMO}/judge first && cp -r {DEMO}/judge second && cp -r {DEMO}/judge pair
        judge --llm demo demo --experiments-folder first
        judge --llm demo demo --experiments-folder first
        judge --model demo --folder second/right --sample 5 --label-score sequence --audit-noise 5
        judge --llm demo demo --folder second/wrong --llm-prompt in/evaluator.yaml
        judge --llm demo demo --folder pair/right --opponent-folder pair/wrong \
            --opponent-name wrong --llm-prompt default_multi_qa
        judge --llm demo demo --folder pair/right --opponent-folder pair/wrong \
            --opponent-name both --llm-prompt default_multi_qa --both-orders --limit 3
        metrics --experiments-folder first
        metrics --folder second/right --limit 4
        results --experiments-folder first --output-dir table --format full
        results --experiments-folder first --output table.csv --sort EM
        compare first/right/eval_dev_judge_LLMeval_demo_logits.json \
            first/wrong/eval_dev_judge_LLMeval_demo_logits.json --output judged
        compare first/right/eval_dev_out.json first/wrong/eval_dev_out.json \
            --output measured.json --force
    """,
    "samples": f"""
        sample --model demo --input {DEMO}/prompts.jsonl --output drawn.json -n 3 \
            --max-new-tokens 24 --limit 5 --top-p 0.9 --apply-chat-template
        sample --model demo --input {DEMO}/prompts.jsonl --output greedy.json -n 1 \
            --temperature 0 --max-new-tokens 40 --apply-chat-template --stop Zor "}}"
        self-certainty --model-name demo --input-file {SAMPLES} --output-file a.json --gold answer
        self-certainty --model demo --input-file {SAMPLES} --output-file b.json --gold answer \
            --dtype bfloat16
        self-certainty --model demo --input-file {SAMPLES} --output-file c.json \
            --alignment upstream --limit 6
        select --input-file a.json --best-N 8 --gold answer --output-file selected.json
        select --input-file a.json --best-N 4 --output-file selected-plain.json
        vote --input-file a.json --best-N 8 --power 0.5 --gold answer --output-file voted.json
        vote --input-file a.json --best-N 8 --power 0 --gold answer --output-file majority.json
        usc-generate --model demo --input-file {SAMPLES} --output-file usc.json --best-N 4 \
            --max-new-tokens 24 --limit 6
        usc-select --input-file usc.json --dataset-type close --gold answer \
            --output-file usc-close.json
        usc-select --input-file usc.json --output-file usc-open.json
        livecode-select --input-file in/code.json --best-N 2 --output-file code-selected.json
        livecode-parse --input-file in/code.json --output-file code-parsed.json
        livecode-select --input-file tests/cases/livecode/samples.json --best-N 4 \
            --output-file code-cases.json
        compare a.json b.json --output certainty
        compare a.json c.json --output alignments --force
        compare selected.json voted.json --output chosen
        compare voted.json majority.json --output votes
    """,
    "compare": f"""
        score --model demo --input {DEMO}/prompts.jsonl \
            --column context=prompt continuation=answer --output score-a.jsonl
        score --model demo --input {DEMO}/prompts.jsonl \
            --column context=prompt continuation=answer --output score-b.parquet --dtype bfloat16
        compare score-a.jsonl score-b.parquet
        choose --model demo --input {DEMO}/choose.jsonl --output choose-a.parquet --audit-noise 20
        choose --model demo --input {DEMO}/choose.jsonl --output choose-b.jsonl \
            --dtype bfloat16 --audit-noise 20
        compare choose-a.parquet choose-b.jsonl --output chosen.json --limit 20
        perplexity --model demo --input {DEMO}/prompts.jsonl --column text=prompt \
            --output perplexity-a.jsonl
        perplexity --model demo --input {DEMO}/prompts.jsonl --column text=prompt \
            --output perplexity-b.jsonl --dtype bfloat16
        compare perplexity-a.jsonl perplexity-b.jsonl --output perplexity
        {EVALUATE_PATHS} --output paths-a.json
        {EVALUATE_PATHS} --output paths-b.json --dtype bfloat16
        compare paths-a.json paths-b.json --output paths --n-resamples 99 --n-bootstrap 50
        {CHRONOLOGIC} --full-eval --output-dir chronologic-a
        {CHRONOLOGIC} --full-eval --output-dir chronologic-b --dtype bfloat16
        $ mv chronologic-a/eval_results_*.json chronologic-a.json \
            && mv chronologic-b/eval_results_*.json chronologic-b.json
        compare chronologic-a.json chronologic-b.json --output chronologic
        {PROBSEM} --test truth --output-dir probsem-a
        {PROBSEM} --test truth --output-dir probsem-b --dtype bfloat16
        $ mv probsem-a/*_results.json probsem-a.json && mv probsem-b/*_results.json probsem-b.json
        compare probsem-a.json probsem-b.json --output probsem
        $ touch table.csv
        compare score-a.jsonl table.csv
        compare score-a.jsonl paths-a.json
        compare paths-a.json paths-b.json --output - --quiet
        compare score-a.jsonl missing.jsonl
    """,
    "models": f"""
        families
        families --json
        families --model demo
        families --model demo --json
        families --model tests/cases/models/tiny-qwen2
        families --model in/unknown-family
        plan --model demo --mesh auto --devices 8 --device-memory 40MB --batch-tokens 1024 \
            --output plan.json
        plan --model demo --output -
        convert --model demo --output converted
        score --model converted --input in/texts.jsonl --output converted.jsonl --journal off
        $ rm converted.jsonl.run.json
        convert --model demo --output converted
        {SCORE} --output scores.jsonl
        journal info scores.jsonl
        journal prune scores.jsonl --keep 0
        journal info scores.jsonl
    """,
    "refusals": f"""
        nothing
        socre --model demo
        --model demo score
        --version
        score
        score --modle demo --input in/texts.jsonl --output out.jsonl
        score --model demo --input in/missing.jsonl --output out.jsonl
        score --model missing-folder --input in/texts.jsonl --output out.jsonl
        score --model demo --input in/broken.jsonl --output out.jsonl
        score --model demo --input in/wrong-type.jsonl --output out.jsonl
        score --model demo --input in/empty.jsonl --output out.jsonl
        score --model demo --input in/texts.jsonl --output out.jsonl --dtype float64
        score --model demo --input in/texts.jsonl --output out.jsonl --batch-tokens 0
        score --model demo --input in/texts.jsonl --output out.jsonl --measures rnak
        score --model demo --input in/texts.jsonl --output out.jsonl --column contxt=a
        score --model demo --input - --output out.jsonl
        score --model demo --input in/texts.jsonl --output missing/out.jsonl
        score --model demo --input in/texts.jsonl --output in/texts.jsonl
        choose --model demo --input in/texts.jsonl --output out.jsonl
        choose --model demo --input in/items.jsonl --output out.jsonl --temperature 1
        perplexity --model demo --input in/documents.jsonl --output out.jsonl --stride 0
        divergence --model demo --reference missing --input in/texts.jsonl --output out.jsonl
        paths --model demo --input in/texts.jsonl --output out.json
        paths --model demo --input {DEMO}/paths.jsonl --output out.json --num-fewshot 2
        chronologic demo in/texts.jsonl --mcq
        probsem --model demo --prompt none --test truth --input-dir {DEMO}/probsem
        judge --folder missing --llm demo
        judge --folder {DEMO}/judge/right
        metrics --folder missing
        results --experiments-folder missing
        select --input-file in/code.json
        vote --input-file missing.json
        select --input-file in/code.json --model demo
        usc-select --input-file in/code.json
        sample --model demo --input {DEMO}/prompts.jsonl --temperature -1 -n 2
        compare a b
        convert --model demo --output in
        journal info missing.jsonl
        plan --model demo --mesh data=x
        serve --model missing-folder
        --config in/unknown-flag.yaml
        --config in/tagged.yaml
    """,
    "resumed": f"""
        {SCORE} --output score.jsonl --measures rank,top_k
        choose --model demo --input {DEMO}/choose.jsonl --output choose.jsonl
        {EVALUATE_PATHS} --output paths.json
        sample --model demo --input {DEMO}/prompts.jsonl --output sample.json -n 2 \
            --max-new-tokens 24 --apply-chat-template
        usc-generate --model demo --input-file {SAMPLES} --output-file usc.json --best-N 4 \
            --max-new-tokens 24
    """,
}

ENDPOINT = """
    score --model demo --api-base URL --input in/texts.jsonl --output scores.jsonl
    score --model demo --api-base URL --input in/texts.jsonl --output ranks.jsonl --measures rank
    score --model demo --api-base URL --input in/texts.csv --output scores.parquet
    paths --model demo --api-base URL --input jaxscore/demo/inputs/paths.jsonl \
        --output paths.json --limit 6 --boundary joint
    chronologic demo jaxscore/demo/inputs/chronologic.jsonl --api-base URL --full-eval \
        --output-dir full --limit 6
    chronologic demo jaxscore/demo/inputs/chronologic.jsonl --api-base URL --mcq \
        --output-dir mcq --limit 6
    probsem --model demo --prompt demo --test truth --input-dir jaxscore/demo/inputs/probsem \
        --output-dir probsem --api-base URL
    $ cp -r jaxscore/demo/inputs/judge judged
    judge --gpt demo --api-base URL --folder judged/right --limit 3
    score --model other --api-base URL --input in/texts.jsonl --output refused.jsonl
"""

CHAT = [{"role": "user", "content": "Where is Telford?"}]
COMPLETION = {"prompt": "Telford borders", "temperature": 0, "max_tokens": 6}
# (method, path, body) of requests to the server; each body is sent as JSON, a list as JSON lines
REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/demo", None),
    ("GET", "/v1/models/other", None),
    ("GET", "/tokenizer_info", None),
    ("GET", "/nowhere", None),
    ("POST", "/tokenize", {"prompt": "Telford borders"}),
    ("POST", "/tokenize", {"messages": CHAT}),
    ("POST", "/detokenize", {"tokens": [300, 301, 302]}),
    ("POST", "/v1/completions", COMPLETION),
    ("POST", "/v1/completions", COMPLETION | {"echo": True, "logprobs": 3, "max_tokens": 0}),
    ("POST", "/v1/completions", COMPLETION | {"logprobs": 2, "stop": ["."]}),
    ("POST", "/v1/completions", COMPLETION | {"prompt": ["A letter", "Oslo"], "seed": 1, "n": 1}),
    ("POST", "/v1/completions", COMPLETION | {"temperature": 1, "n": 2, "seed": 5, "top_p": 0.9}),
    ("POST", "/v1/completions", COMPLETION | {"prompt": [[300, 301], [302]], "max_tokens": 2}),
    ("POST", "/v1/completions", COMPLETION | {"stream": True, "logprobs": 1}),
    (
        "POST",
        "/v1/completions",
        COMPLETION | {"stream": True, "stream_options": {"include_usage": True}},
    ),
    ("POST", "/v1/completions", COMPLETION | {"max_tokens": -1}),
    ("POST", "/v1/completions", COMPLETION | {"prompt": 3}),
    ("POST", "/v1/completions", COMPLETION | {"model": "other"}),
    ("POST", "/v1/completions", COMPLETION | {"temprature": 0}),
    ("POST", "/v1/completions", COMPLETION | {"best_of": 3}),
    ("POST", "/v1/completions", "no JSON"),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "temperature": 0, "max_tokens": 8}),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": CHAT, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 2},
    ),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": CHAT, "temperature": 0, "max_tokens": 8, "stream": True},
    ),
    ("POST", "/v1/chat/completions", {"messages": []}),
    ("POST", "/v1/chat/completions", {"messages": CHAT, "tools": [{}]}),
    ("POST", "/jaxscore/score", {"id": 1, "context": "Telford borders", "continuation": " Oslo"}),
    ("POST", "/jaxscore/score", [{"continuation": "Oslo"}, {"context": "A", "continuation": ""}]),
    ("POST", "/jaxscore/label", {"prompt": "Is it? Answer:", "labels": [" yes", " no"]}),
    ("POST", "/jaxscore/label", {"context": "Is it? Answer:", "labels": [" yes", " no"]}),
    ("GET", "/v1/completions", None),
    ("GET", "/metrics", None),
]


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read as `in/NAME`."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    folder.mkdir()

    def write(name: str, text: str) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    def write_lines(name: str, rows: list[dict[str, Any]]) -> None:
        write(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def write_table(name: str, rows: list[dict[str, Any]], separator: str = ",") -> None:
        columns = list(rows[0])
        lines = [columns, *([row.get(column, "") for column in columns] for row in rows)]
        write(name, "".join(separator.join(map(_cell, line)) + "\n" for line in lines))

    write_lines("texts.jsonl", TEXTS)
    write("texts.json", json.dumps(TEXTS))
    write_table("texts.csv", [row for row in TEXTS if row["id"] != "long"])
    write_lines("shots.jsonl", [TEXTS[0], TEXTS[3]])
    write_table("renamed.tsv", [{"reply": " Telford borders", "year": 1885}], "\t")
    write_lines("items.jsonl", ITEMS)
    write_table(
        "items.csv",
        [{**row, "options": json.dumps(row["options"])} for row in ITEMS if row["id"] != "q2"],
    )
    write_lines("documents.jsonl", DOCUMENTS)
    write("folder/a.txt", DOCUMENTS[0]["text"])
    write("folder/b.txt", DOCUMENTS[2]["text"])
    write_lines("paths.jsonl", PATHS)
    write_table(
        "paths.csv",
        [{**row, "paths": json.dumps(row["paths"])} for row in PATHS if row["id"] == "p1"],
    )
    write("code.json", json.dumps(CODE))
    write("broken.jsonl", '{"continuation": "a"}\n{"continuation": \n')
    write("wrong-type.jsonl", '{"continuation": "a"}\n{"continuation": 3}\n')
    write("empty.jsonl", "")
    write("unknown-flag.yaml", "command: score\nmodle: demo\n")
    write("tagged.yaml", "command: !!python/name:os.system score\n")
    write("unknown-family/config.json", '{"model_type": "no-such-family", "vocab_size": 3}')
    evaluator = Path("jaxscore/systems/rag/evaluators/default_qa.yaml")
    if not evaluator.exists():
        evaluator = Path("jaxscore/tasks/rag/evaluators/default_qa.yaml")
    write("evaluator.yaml", evaluator.read_text().replace("use_logits: true", "use_logits: false"))
    typed = [{**row, "n": float(row["n"])} for row in TEXTS]
    pa.parquet.write_table(pa.Table.from_pylist(typed), folder / "texts.parquet")
    pa.parquet.write_table(
        pa.Table.from_pylist([{**row, "gold": str(row.get("gold", 0))} for row in ITEMS[:1]]),
        folder / "items.parquet",
    )
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(typed).save_to_disk(str(folder / "saved"))


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",\n\t') else text
