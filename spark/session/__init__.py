"""The session and its queries: its settings, its workers' Python, its JVM, its failed batches."""
