//! Where tensors live: host memory, staging pools, strided copies.
