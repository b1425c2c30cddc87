"""A message on its way: headers, serializers, spans. What an application receives is in `consumer`."""
