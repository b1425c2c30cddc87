"""`kafkadur serve`: a JSON API and a page for the subscriptions of one namespace.

`application.py` puts the parts together. `observer.py` reads all subscriptions again and again, so that lists
and charts are answered from memory. `reading.py` and `acting.py` have the routes: what is read of a
subscription, and what is done to it. `access.py` decides who may do what, and `audit.py` records each act in
Kafka. The page is in `page/`; it uses the API alone.
"""
