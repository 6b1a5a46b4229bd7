"""The proof of readers in any language: the vectors, and the program that drives and judges a reader."""
