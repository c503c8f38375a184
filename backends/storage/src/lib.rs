//! Object storage for checkpoints: disk, S3, GCS, Azure, memory, with conditional puts and a conformance suite.
