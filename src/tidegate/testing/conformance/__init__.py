"""The proof of readers in any language: their protocol, the vectors, the program that drives and judges them."""
