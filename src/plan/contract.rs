use super::PlanError;
use reshard_shard::DType;
use std::collections::BTreeMap;

/// What may differ between the dtype that was saved and the one that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DTypeRule {
    /// Nothing: bytes are copied, bit for bit.
    #[default]
    Exact,
    /// The wanted dtype holds every value of the saved one (bf16 -> f32, u8 -> i16).
    Widen,
    /// Any float to any float, rounded to nearest even, with overflow to infinity counted in the report; any
    /// integer to any integer, where a value out of range is an error.
    Any,
}

/// The dtype rule of a load, with exceptions for single keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DTypeContract {
    rule: DTypeRule,
    overrides: BTreeMap<String, DTypeRule>,
}

impl DTypeContract {
    /// One rule for all tensors.
    pub fn new(rule: DTypeRule) -> Self {
        Self { rule, overrides: BTreeMap::new() }
    }

    /// Another rule for one key.
    pub fn with_override(mut self, key: impl Into<String>, rule: DTypeRule) -> Self {
        self.overrides.insert(key.into(), rule);
        self
    }

    /// Checks that `saved` may be loaded as `wanted`.
    ///
    /// # Errors
    /// [`PlanError::DType`] naming key, both dtypes and the rule that would allow it, if any does.
    pub(crate) fn check(&self, key: &str, saved: DType, wanted: DType) -> Result<(), PlanError> {
        let rule = self.overrides.get(key).copied().unwrap_or(self.rule);
        let allowed = match rule {
            DTypeRule::Exact => saved == wanted,
            DTypeRule::Widen => saved == wanted || widens(saved, wanted),
            DTypeRule::Any => saved == wanted || converts(saved, wanted),
        };
        if allowed {
            return Ok(());
        }
        let hint = match (widens(saved, wanted), converts(saved, wanted)) {
            (true, _) => "allow `widen`, or want the saved dtype",
            (false, true) => "allow `any` (it rounds), or want the saved dtype",
            (false, false) => "these dtypes never convert; want the saved dtype",
        };
        Err(PlanError::DType { key: key.to_owned(), saved, wanted, hint })
    }
}

/// Whether a conversion exists at all. Bool, complex and opaque types never convert, nor integers to floats.
fn converts(from: DType, to: DType) -> bool {
    from.is_float() && to.is_float() || from.is_integer() && to.is_integer()
}

/// Whether `to` holds every value of `from`.
fn widens(from: DType, to: DType) -> bool {
    use DType::*;
    match (from, to) {
        // At most 3 mantissa bits, and exponents inside f16's (subnormals included) and bf16's range.
        (F8E4M3 | F8E5M2 | F8E4M3Fnuz | F8E5M2Fnuz, F16 | BF16 | F32 | F64) => true,
        (F16 | BF16, F32 | F64) | (F32, F64) => true,
        (U8, U16 | U32 | U64 | I16 | I32 | I64) => true,
        (U16, U32 | U64 | I32 | I64) | (U32, U64 | I64) => true,
        (I8, I16 | I32 | I64) | (I16, I32 | I64) | (I32, I64) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_allow_what_they_say() {
        use DType::*;
        let allowed = |rule, saved, wanted| DTypeContract::new(rule).check("k", saved, wanted).is_ok();
        assert!(allowed(DTypeRule::Exact, C64, C64) && !allowed(DTypeRule::Exact, BF16, F32));
        assert!(allowed(DTypeRule::Widen, BF16, F32) && !allowed(DTypeRule::Widen, F32, BF16));
        assert!(!allowed(DTypeRule::Widen, F16, BF16) && allowed(DTypeRule::Any, F16, BF16));
        assert!(allowed(DTypeRule::Any, I64, U8) && !allowed(DTypeRule::Any, I64, F64));
        assert!(!allowed(DTypeRule::Any, Bool, U8) && !allowed(DTypeRule::Any, C64, F32));
        let contract = DTypeContract::new(DTypeRule::Exact).with_override("w", DTypeRule::Any);
        assert!(contract.check("w", F32, BF16).is_ok());
        let error = contract.check("v", F32, BF16).unwrap_err().to_string();
        assert!(
            error.contains("`v`") && error.contains("f32") && error.contains("bf16") && error.contains("any")
        );
    }
}
