"""What a driver does between batches: retire, trim, fill, follow other stores, pin versions."""
