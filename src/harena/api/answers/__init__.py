"""What is sent: rows as answers (`views`), cached boards (`boards`), streams (`live`), replays, the page's files
(`pages`), and the models of the OpenAPI document (`openapi`).
"""
