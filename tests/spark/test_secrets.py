"""A login in an option of a read is in no exception, no plan and no event log of Spark (T48)."""

from __future__ import annotations

import random
from pathlib import Path
from urllib.parse import quote

import pytest
from pyspark.errors import PySparkException

from services.support.redis.server import RedisServer
from support.secret_urls import pieces, secret_in, shapes, told_of
from tidegate.spark import register
from tidegate.testing.example import write_flights

pytestmark = pytest.mark.spark

PASSWORD = "s3cret0a/s3cret0b@s3cret0c:s3cret0d?#%[1]éключ"


@pytest.fixture
def event_log(spark, tmp_path):
    """What Spark logs meanwhile, as a function."""
    jvm, context = spark._jvm, spark._jsc.sc()
    conf = context.getConf().clone().set("spark.eventLog.rolling.enabled", "false")
    conf = conf.set("spark.eventLog.compress", "false")
    folder = tmp_path / "events"
    folder.mkdir()
    nothing = jvm.scala.Option.empty()
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secrets", nothing, jvm.java.net.URI(folder.as_uri()), conf
    )
    listener.start()
    context.addSparkListener(listener)

    def text() -> str:
        context.listenerBus().waitUntilEmpty()
        context.removeSparkListener(listener)
        listener.stop()
        (file,) = folder.iterdir()
        return Path(file).read_text()

    return text


def test_reads_that_work_t48(spark, tmp_path, event_log):
    register(spark)
    with RedisServer(tmp_path / "redis", password=PASSWORD) as server:
        store, wal = f"redis://:{quote(PASSWORD, safe='')}@{server.address}", f"file://{tmp_path}/wal"
        write_flights(wal=wal, store=store)
        given = {"namespace": "flights", "store": store, "table": "aircraft"}
        options = {**given, "storeOptions": '{"timeout_s": 30}'}
        rows = spark.read.format("tidegate").options(**options).load().where("carrier > 'A'")
        assert rows.count() > 0
        changes = spark.readStream.format("tidegate").options(**options, wal=wal).load()
        query = changes.writeStream.format("noop").option("checkpointLocation", f"{tmp_path}/checkpoint")
        run = query.trigger(availableNow=True).start()
        run.awaitTermination()
        shown = [
            *(frame._jdf.queryExecution().toString() for frame in (rows, changes)),
            *(repr(each) for each in (rows, changes, run.recentProgress, run.status)),
            *(
                path.read_text(errors="replace")
                for path in (tmp_path / "checkpoint").rglob("*")
                if path.is_file()
            ),
        ]
    assert run.recentProgress
    assert not secret_in("\n".join(shown), PASSWORD)
    logged = event_log()
    assert "SparkListenerSQLExecutionStart" in logged
    assert not secret_in(logged, PASSWORD)


def test_reads_that_are_refused_t48(spark, tmp_path, event_log):
    register(spark)
    rng = random.Random(48)
    user, password = pieces(rng), pieces(rng)
    urls = [
        url for url in shapes(rng, user, password) if "@host" in url and url.startswith(("redis", "file"))
    ]
    for url in rng.sample(urls, 2):
        given = {"namespace": "n", "store": url, "table": "t", "storeOptions": '{"timeout_s": 0.1}'}
        with pytest.raises(PySparkException) as caught:
            spark.read.format("tidegate").options(**given).load()
        assert not secret_in(told_of(caught.value), user, password), url
        with pytest.raises(PySparkException) as caught:
            spark.readStream.format("tidegate").options(**given, wal=url).load()
        assert not secret_in(told_of(caught.value), user, password), url
    assert not secret_in(event_log(), user, password)
