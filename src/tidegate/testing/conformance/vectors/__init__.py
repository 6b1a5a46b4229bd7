"""The vectors: names, keys, values, schemas and refusals with their outcomes, as this release computes them.

``tools/vectors.py`` writes them to ``conformance/vectors``. ``conformance/README.md`` describes their fields.
"""
