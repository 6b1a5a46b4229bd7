"""What a schedule plays: the world, its actors, and what some schedules add to it."""
