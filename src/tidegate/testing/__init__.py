"""Suites that every log and every store has to pass, and what runs beside them.

For a log or a store of your own: subclass ``tidegate.testing.log.suite.LogSuite`` or
``tidegate.testing.store.suite.StoreSuite`` in a test file and give the hooks that its docstring names. They
need pytest; what each test stands for is a sentence in the docstrings of ``wal/log.py`` and
``sinks/store.py``, which say what is durable on return, what may be repeated, what each error proves.
``tidegate.testing.example.write_flights`` makes a small namespace with three versions to try readers on.
"""
