"""`kafkadur serve`: a JSON API and a page for the subscriptions of one namespace.

`application.py` puts the parts together. `observer.py` reads all subscriptions again and again, so that lists
and charts are answered from memory. `reading.py` has the routes that read, `acting.py` those that change
something. `access.py` has tokens and roles; `dependencies.py` and `middleware.py` check them. `audit.py`
records each change in Kafka. The page is in `page/`; it uses the API alone.
"""
