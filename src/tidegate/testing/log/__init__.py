"""The conformance suite that every log passes."""
