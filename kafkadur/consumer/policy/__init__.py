"""What differs between the types of subscriptions. No other module of a member asks for the type."""
