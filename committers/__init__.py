"""The driver's side. The commit: ``commit.py`` has its order, ``states.py`` its states, ``steps`` its steps.

``opening`` opens a namespace and recovers it, ``repair`` puts back what a store lost, ``background`` retires
and follows, ``apply`` is the executors' part. The tools of operators: ``operations``, ``transfer`` and
``exports``.
"""
