"""Examples: networks to compile, and programs that show how."""
