"""The proof that no task of a version has read two runs of a stage (I1): it is staged until that holds.

``single_runs.py`` has it from Spark's tracker of map outputs, ``marked_runs.py`` from marks in the rows.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.errors import PySparkException

from tidegate.errors import ConflictError
from tidegate.spark.errors import Py4JJavaError, java_words

logger = logging.getLogger("tidegate")

Staged = TypeVar("Staged")

STAGINGS_MAX = 3
"""The most stagings of one version, each after one whose shuffles were made again."""
ABORTED = re.compile(
    r"([\w.]+: )?(\[\w+\] )?(Job aborted due to stage failure: (?!Task \d+ in stage)|Job \d+ cancelled )"
    ".*indeterminate"
)
"""Spark's error when it ends a job since an output that was made again differs. A task's may quote rows."""


class Runs(ABC):
    """The shuffles that one version reads. ``marked``: their rows have to have marks."""

    marked = False

    def staged(self, stage: Callable[[], Staged]) -> Staged:
        """Call ``stage`` until it has read one run of each shuffle; return its result.

        A shuffle that was made again with the same rows does not count, if that is proven.
        Raises: the errors of ``stage``. ConflictError: a shuffle was made again in each staging, or before
        the first one.
        """
        for _ in range(STAGINGS_MAX):
            self._begin()
            try:
                result = stage()
                if self._is_single(result):
                    return result
            except (PySparkException, Py4JJavaError) as error:
                if not any(map(ABORTED.match, java_words(error))):
                    raise
            logger.warning(
                "Spark made a shuffle again after tasks may have read it, and nothing proves that its rows"
                " are the same: the version is staged again"
            )
        raise ConflictError(
            f"Spark made a shuffle again in each of {STAGINGS_MAX} stagings of the version, and nothing"
            " proves that its rows are the same: nothing was decided. Find in Spark's log why executors or"
            " their shuffle files are lost, then restart the query"
        )

    @abstractmethod
    def read(self, rows: Any) -> None:
        """Note the rows (an RDD of the JVM) that the last job has read."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin a staging."""

    @abstractmethod
    def _is_single(self, result: Any) -> bool:
        """Return whether the staging has read one run of each shuffle. Raises: ConflictError."""
