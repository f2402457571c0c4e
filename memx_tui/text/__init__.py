"""Plans as plain text: tables, memory bars and comparisons for the command line."""
