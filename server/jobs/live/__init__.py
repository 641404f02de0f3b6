"""Jobs that have not ended: what is known of them, who looks at them, how they end."""
