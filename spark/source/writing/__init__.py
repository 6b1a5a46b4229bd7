"""``df.writeStream.format("tidegate")``: a data source whose tasks stage, and whose commit decides."""
