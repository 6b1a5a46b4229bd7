"""The play of a schedule: the world, its actors, and the parts that some schedules add."""
