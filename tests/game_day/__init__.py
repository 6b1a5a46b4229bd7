"""The game day: incidents on real servers, judged by readers, a recount and alerts."""
