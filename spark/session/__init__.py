"""The session and its queries: its settings, its workers' Python, the JVM behind it, its failed batches."""
