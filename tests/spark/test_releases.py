"""The ways of older releases of Spark, tried on this one: the rows and the answers are the same."""

import numpy as np
import pytest
from pyspark.sql import DataFrame, functions

from tidegate.spark.session.releases import hash_of_ints, repartition_by_id, valid_utf8, values_for

pytestmark = pytest.mark.spark


def test_the_hash_of_ints_is_sparks(spark):
    ints = [*range(40), 1_000, 123_456_789, 2**31 - 1]
    rows = spark.createDataFrame([(each,) for each in ints], "i int").select(functions.hash("i")).collect()
    assert hash_of_ints(np.array(ints, np.uint32)).tolist() == [row[0] for row in rows]


@pytest.mark.parametrize("partitions", [1, 2, 7, 200])
def test_each_partition_has_a_value_that_is_hashed_to_it(partitions):
    hashed = hash_of_ints(np.array(values_for(partitions), np.uint32))
    assert (hashed.astype(int) % partitions).tolist() == list(range(partitions))


@pytest.mark.parametrize("partitions", [1, 5])
def test_rows_are_sent_to_the_partition_of_their_number_without_repartition_by_id(
    spark, monkeypatch, partitions
):
    monkeypatch.delattr(DataFrame, "repartitionById", raising=False)
    rows = spark.range(40).select((functions.col("id") % partitions).cast("int").alias("number"))
    sent = repartition_by_id(rows, partitions, functions.col("number"))
    found = sent.select("number", functions.spark_partition_id()).collect()
    assert len(found) == 40
    assert all(number == place for number, place in found)


def test_text_that_is_not_utf8_is_found_without_is_valid_utf8(spark, monkeypatch):
    texts = spark.sql("SELECT CAST(unhex(h) AS string) AS t FROM VALUES ('ff41'), ('c3a9'), ('') AS v(h)")
    expected = [row[0] for row in texts.select(valid_utf8(functions.col("t"))).collect()]
    assert expected == [False, True, True]
    monkeypatch.delattr(functions, "is_valid_utf8", raising=False)
    assert [row[0] for row in texts.select(valid_utf8(functions.col("t"))).collect()] == expected
