//! What a shard is: regions, dtypes, sharded tensors, topologies and sharding rules.
