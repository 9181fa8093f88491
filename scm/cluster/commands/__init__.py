"""Commands on their way to datanodes: queued, bounded by what each has to do, sent, answered."""
