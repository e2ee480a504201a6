"""Commands that speak to a cluster. They alone import `kubernetes` and `aiohttp`, and only when they run."""
