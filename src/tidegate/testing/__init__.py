"""Suites that every log and every store has to pass, and the helpers of tests and demonstrations.

For a log or a store of your own: subclass ``tidegate.testing.log.suite.LogSuite`` or
``tidegate.testing.store.suite.StoreSuite`` in a test file and implement the hooks that its docstring names.
They need ``tidegate[testing]``. Each test checks a sentence in the docstrings of ``wal/log.py`` and
``sinks/store.py``, which define what is durable on return, what may be repeated, what each error proves.
``tidegate.testing.example.write_flights`` makes a small namespace with three versions to try readers on.
"""
