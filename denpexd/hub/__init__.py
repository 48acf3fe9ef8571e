"""Jobs that span nodes: nodes forward what their cores were fed over NATS JetStream, hubs judge it as one job."""
