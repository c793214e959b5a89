"""What people look at: the report page and the figures."""
