"""What only a database server offers: locks that end with a connection, and notices between processes."""
