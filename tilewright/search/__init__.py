"""What every search shares: spaces, costs, budgets, traces, and one file per method."""
