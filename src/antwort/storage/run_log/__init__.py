"""The log of runs that can outlive a process: its contract, and one implementation in memory and one in a database."""
