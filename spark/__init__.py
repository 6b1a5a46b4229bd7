"""The PySpark side: the only part that imports pyspark."""
