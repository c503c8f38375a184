/// Whether the long tier of the tests runs (`tests/run --long`): large sizes and full sweeps.
pub fn long() -> bool {
    std::env::var("RESHARD_TEST_LONG").is_ok_and(|value| value == "1")
}

/// The number of random cases of a property: `plain`, and sixteen times as many in the long tier.
pub fn cases(plain: u32) -> u32 {
    if long() { plain * 16 } else { plain }
}
