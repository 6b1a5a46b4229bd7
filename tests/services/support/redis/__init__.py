"""Redis servers, their proxy, and queries on them."""
