//! One binary floating-point format, described by numbers, and its exact relation to `f64`.
//!
//! Every format here fits into `f64` without loss. So any two convert by way of `f64` with a single rounding: decoding
//! is exact, and encoding looks at all 53 bits of significand at once.

use reshard_shard::DType;

const F64_FRACTION_BITS: u32 = 52;
const F64_SIGN: u64 = 1 << 63;
const F64_INFINITY: u64 = 0x7ff << F64_FRACTION_BITS;
const F64_QUIET: u64 = 1 << (F64_FRACTION_BITS - 1);
const F64_FRACTION: u64 = (1 << F64_FRACTION_BITS) - 1;
const F64_BIAS: i64 = 1023;

/// Which codes mean something else than a finite number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Specials {
    /// The largest exponent: infinities and NaNs.
    Ieee,
    /// The largest magnitude is NaN; no infinities.
    LargestIsNan,
    /// The code of negative zero is the one NaN; no infinities.
    NegativeZeroIsNan,
}

/// Layout of a format: sign, exponent, fraction from the top bit down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FloatFormat {
    exponent_bits: u32,
    fraction_bits: u32,
    bias: i64,
    specials: Specials,
}

impl FloatFormat {
    /// The format of a float dtype.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        let (exponent_bits, fraction_bits, bias, specials) = match dtype {
            DType::F64 => (11, 52, F64_BIAS, Specials::Ieee),
            DType::F32 => (8, 23, 127, Specials::Ieee),
            DType::BF16 => (8, 7, 127, Specials::Ieee),
            DType::F16 => (5, 10, 15, Specials::Ieee),
            DType::F8E5M2 => (5, 2, 15, Specials::Ieee),
            DType::F8E4M3 => (4, 3, 7, Specials::LargestIsNan),
            DType::F8E5M2Fnuz => (5, 2, 16, Specials::NegativeZeroIsNan),
            DType::F8E4M3Fnuz => (4, 3, 8, Specials::NegativeZeroIsNan),
            _ => return None,
        };
        Some(Self { exponent_bits, fraction_bits, bias, specials })
    }

    /// Size of an element in bytes.
    pub(super) fn bytes(self) -> usize {
        (1 + self.exponent_bits + self.fraction_bits) as usize / 8
    }

    fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    /// The code of infinity, or of the smallest number with the largest exponent where that is a number.
    fn top_exponent(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    /// The bits of the `f64` with the value of `code`.
    pub(super) fn decode(self, code: u64) -> u64 {
        let sign = if code & self.sign() == 0 { 0 } else { F64_SIGN };
        let magnitude = code & (self.sign() - 1);
        let to_f64 = F64_FRACTION_BITS - self.fraction_bits;
        let nan = match self.specials {
            Specials::Ieee => magnitude > self.top_exponent(),
            Specials::LargestIsNan => magnitude == self.sign() - 1,
            Specials::NegativeZeroIsNan => code == self.sign(),
        };
        if nan {
            return match self.specials {
                Specials::Ieee => sign | F64_INFINITY | F64_QUIET | (magnitude << to_f64) & F64_FRACTION,
                Specials::LargestIsNan => sign | F64_INFINITY | F64_QUIET,
                Specials::NegativeZeroIsNan => F64_INFINITY | F64_QUIET,
            };
        }
        if self.specials == Specials::Ieee && magnitude == self.top_exponent() {
            return sign | F64_INFINITY;
        }
        if self.fraction_bits == F64_FRACTION_BITS || magnitude == 0 {
            return sign | magnitude;
        }
        if magnitude >> self.fraction_bits == 0 {
            // Subnormal: its leading one becomes the hidden bit of a normal f64.
            let up = magnitude.leading_zeros() + F64_FRACTION_BITS - 63;
            let exponent = F64_BIAS + 1 - self.bias - i64::from(up - to_f64);
            return sign | ((exponent as u64) << F64_FRACTION_BITS) | (magnitude << up) & F64_FRACTION;
        }
        sign | ((magnitude << to_f64) + (((F64_BIAS - self.bias) as u64) << F64_FRACTION_BITS))
    }

    /// The code nearest to the `f64` with these bits, and whether the value was too large for the format.
    pub(super) fn encode(self, bits: u64) -> (u64, bool) {
        if self.fraction_bits == F64_FRACTION_BITS {
            return (bits, false);
        }
        let sign = if bits & F64_SIGN == 0 { 0 } else { self.sign() };
        let magnitude = bits & !F64_SIGN;
        let from_f64 = F64_FRACTION_BITS - self.fraction_bits;
        let largest = match self.specials {
            Specials::Ieee => self.top_exponent() - 1,
            Specials::LargestIsNan => self.sign() - 2,
            Specials::NegativeZeroIsNan => self.sign() - 1,
        };
        // What stands for values past the largest.
        let beyond = match self.specials {
            Specials::Ieee => sign | self.top_exponent(),
            Specials::LargestIsNan => sign | (self.sign() - 1),
            Specials::NegativeZeroIsNan => self.sign(),
        };
        if magnitude > F64_INFINITY {
            let payload = ((magnitude & F64_FRACTION) | F64_QUIET) >> from_f64;
            return (if self.specials == Specials::Ieee { beyond | payload } else { beyond }, false);
        }
        if magnitude == F64_INFINITY {
            return (beyond, self.specials != Specials::Ieee);
        }
        let exponent = (magnitude >> F64_FRACTION_BITS) as i64 - F64_BIAS + self.bias;
        let code = if exponent >= 1 {
            // A carry out of the fraction moves to the next exponent, which is what rounding up means.
            round_shift(magnitude, from_f64) - (((F64_BIAS - self.bias) as u64) << self.fraction_bits)
        } else {
            // Subnormal or zero. An f64 that is itself subnormal is far below half of any format's smallest.
            let shift = u64::from(from_f64) + 1 + exponent.unsigned_abs();
            let significand = (magnitude & F64_FRACTION) | (1 << F64_FRACTION_BITS);
            if shift > 60 { 0 } else { round_shift(significand, shift as u32) }
        };
        if code > largest {
            return (beyond, true);
        }
        let negative_zero = code == 0 && self.specials == Specials::NegativeZeroIsNan;
        (if negative_zero { 0 } else { sign | code }, false)
    }
}

/// `value / 2^shift` to the nearest integer, ties to even. `shift` is 1 to 60 and the sum must not overflow.
fn round_shift(value: u64, shift: u32) -> u64 {
    let odd = value >> shift & 1;
    (value + (1 << (shift - 1)) - 1 + odd) >> shift
}
