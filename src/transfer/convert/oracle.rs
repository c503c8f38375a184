//! Conversions against an oracle that shares nothing with them: the values of a format are listed by the textbook
//! formula, and the nearest one is found by comparing with midpoints. Midpoints of neighbours are exact in `f64`.

use super::{ConvertCounts, ConvertError, Converter};
use proptest::prelude::*;
use reshard_shard::DType;
use std::sync::LazyLock;

const FLOATS: [DType; 8] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F8E4M3Fnuz,
    DType::F8E5M2Fnuz,
];
const INTEGERS: [DType; 8] =
    [DType::U8, DType::I8, DType::U16, DType::I16, DType::U32, DType::I32, DType::U64, DType::I64];

/// A format of at most 16 bits as a list.
struct Listed {
    dtype: DType,
    bytes: usize,
    sign: u64,
    /// The value of every finite magnitude, ascending by code, and behind it the value that overflow begins at.
    magnitudes: Vec<f64>,
    has_infinity: bool,
    has_negative_zero: bool,
}

static LISTED: LazyLock<Vec<Listed>> = LazyLock::new(|| {
    // Exponent bits, fraction bits, bias, finite magnitudes.
    [
        (DType::F16, 5, 10, 15, 0x7c00, true, true),
        (DType::BF16, 8, 7, 127, 0x7f80, true, true),
        (DType::F8E4M3, 4, 3, 7, 0x7f, false, true),
        (DType::F8E5M2, 5, 2, 15, 0x7c, true, true),
        (DType::F8E4M3Fnuz, 4, 3, 8, 0x80, false, false),
        (DType::F8E5M2Fnuz, 5, 2, 16, 0x80, false, false),
    ]
    .map(|(dtype, exponent_bits, fraction_bits, bias, finite, has_infinity, has_negative_zero)| {
        let magnitudes = (0..=finite)
            .map(|code: i32| {
                let (exponent, fraction) = (code >> fraction_bits, code & ((1 << fraction_bits) - 1));
                let fraction = f64::from(fraction) / f64::from(1 << fraction_bits);
                if exponent == 0 {
                    fraction * 2f64.powi(1 - bias)
                } else {
                    (1.0 + fraction) * 2f64.powi(exponent - bias)
                }
            })
            .collect();
        let bits = 1 + exponent_bits + fraction_bits;
        Listed { dtype, bytes: bits / 8, sign: 1 << (bits - 1), magnitudes, has_infinity, has_negative_zero }
    })
    .into()
});

#[derive(Clone, Copy, Debug)]
enum Value {
    Number(f64),
    Nan { negative: bool },
}

impl Listed {
    fn of(dtype: DType) -> Option<&'static Listed> {
        LISTED.iter().find(|listed| listed.dtype == dtype)
    }

    fn value(&self, code: u64) -> Value {
        let negative = code & self.sign != 0;
        let magnitude = (code & (self.sign - 1)) as usize;
        let finite = self.magnitudes.len() - 1;
        if !self.has_negative_zero && code == self.sign {
            return Value::Nan { negative: false };
        }
        let number = match magnitude {
            _ if magnitude < finite => self.magnitudes[magnitude],
            _ if magnitude == finite && self.has_infinity => f64::INFINITY,
            _ => return Value::Nan { negative },
        };
        Value::Number(if negative { -number } else { number })
    }

    /// The code of the nearest value, by the even code of two, and whether it is past the range.
    fn nearest(&self, number: f64) -> (u64, bool) {
        let sign = if number.is_sign_negative() { self.sign } else { 0 };
        let finite = self.magnitudes.len() - 1;
        let magnitude = number.abs();
        let above = self.magnitudes.partition_point(|&listed| listed <= magnitude);
        let code = match self.magnitudes.get(above) {
            None => finite,
            Some(upper) => {
                let middle = (self.magnitudes[above - 1] + upper) / 2.0;
                let up = magnitude > middle || magnitude == middle && above % 2 == 0;
                if up { above } else { above - 1 }
            }
        };
        if code == finite {
            let beyond = match (self.has_infinity, self.has_negative_zero) {
                (_, false) => self.sign,
                (true, true) => sign | finite as u64,
                (false, true) => sign | 0x7f,
            };
            return (beyond, magnitude.is_finite() || !self.has_infinity);
        }
        if code == 0 && !self.has_negative_zero { (0, false) } else { (sign | code as u64, false) }
    }

    fn is_nan(&self, code: u64) -> bool {
        matches!(self.value(code), Value::Nan { .. })
    }
}

fn width(dtype: DType) -> usize {
    Listed::of(dtype).map_or(if dtype == DType::F32 { 4 } else { 8 }, |listed| listed.bytes)
}

fn value_of(dtype: DType, code: u64) -> Value {
    let number = match dtype {
        DType::F32 => f64::from(f32::from_bits(code as u32)),
        DType::F64 => f64::from_bits(code),
        _ => return Listed::of(dtype).unwrap().value(code),
    };
    if number.is_nan() { Value::Nan { negative: number.is_sign_negative() } } else { Value::Number(number) }
}

/// Converts all codes in one run at an odd address, and checks each and the count.
fn check(from: DType, to: DType, codes: &[u64]) {
    let (from_bytes, to_bytes) = (width(from), width(to));
    let mut src = vec![0xa5];
    for code in codes {
        src.extend_from_slice(&code.to_le_bytes()[..from_bytes]);
    }
    let mut dst = vec![0xa5; 1 + codes.len() * to_bytes];
    let counts = Converter::new(from, to).unwrap().convert(&src[1..], &mut dst[1..]).unwrap();
    let mut overflowed = 0;
    for (&code, out) in codes.iter().zip(dst[1..].chunks(to_bytes)) {
        let mut word = [0; 8];
        word[..to_bytes].copy_from_slice(out);
        let got = u64::from_le_bytes(word);
        match value_of(from, code) {
            Value::Nan { negative } => {
                let Value::Nan { negative: kept } = value_of(to, got) else {
                    panic!("{from} -> {to}: NaN {code:#x} became {got:#x}");
                };
                let no_sign = matches!(to, DType::F8E4M3Fnuz | DType::F8E5M2Fnuz);
                assert!(kept == negative || no_sign, "{from} -> {to}: sign of NaN {code:#x}");
            }
            Value::Number(number) => {
                let (expected, over) = match to {
                    DType::F64 => (number.to_bits(), false),
                    DType::F32 => {
                        let narrow = number as f32;
                        (u64::from(narrow.to_bits()), narrow.is_infinite() && number.is_finite())
                    }
                    _ => Listed::of(to).unwrap().nearest(number),
                };
                assert_eq!(got, expected, "{from} -> {to}: {code:#x} = {number:e} became {got:#x}");
                overflowed += u64::from(over);
            }
        }
    }
    assert_eq!(counts, ConvertCounts { overflowed_to_infinity: overflowed }, "{from} -> {to}");
}

#[test]
fn every_value_of_eight_and_sixteen_bits_converts_right() {
    for from in FLOATS {
        let Some(listed) = Listed::of(from) else { continue };
        let codes: Vec<u64> = (0..2 * listed.sign).collect();
        for to in FLOATS.into_iter().filter(|&to| to != from) {
            check(from, to, &codes);
        }
    }
}

#[test]
fn every_value_of_a_narrow_format_survives_a_wider_one() {
    for narrow in FLOATS {
        let Some(listed) = Listed::of(narrow) else { continue };
        for wide in [DType::F32, DType::F64] {
            let codes: Vec<u8> = (0..2 * listed.sign)
                .filter(|&code| !listed.is_nan(code))
                .flat_map(|code| code.to_le_bytes()[..listed.bytes].to_vec())
                .collect();
            let mut widened = vec![0; codes.len() / listed.bytes * width(wide)];
            Converter::new(narrow, wide).unwrap().convert(&codes, &mut widened).unwrap();
            let mut back = vec![0; codes.len()];
            Converter::new(wide, narrow).unwrap().convert(&widened, &mut back).unwrap();
            assert_eq!(codes, back, "{narrow} by way of {wide}");
        }
    }
}

/// Around every value and every midpoint of every narrow format: the place itself and its closest neighbours. Rounding
/// twice, or by truncated bits, fails here.
#[test]
fn halfway_cases_round_once() {
    for to in FLOATS {
        let Some(listed) = Listed::of(to) else { continue };
        let mut doubles = vec![0.0, f64::MAX, f64::INFINITY, f64::NAN, f64::from_bits(1), f64::MIN_POSITIVE];
        for pair in listed.magnitudes.windows(2) {
            for place in [pair[0], (pair[0] + pair[1]) / 2.0, pair[1]] {
                doubles.extend([place.next_down(), place, place.next_up()]);
            }
        }
        let signed = || doubles.iter().flat_map(|&number| [number, -number]);
        check(DType::F64, to, &signed().map(f64::to_bits).collect::<Vec<_>>());
        let singles = signed().map(|number| number as f32);
        let singles: Vec<u64> = singles
            .flat_map(|number| [number.next_down(), number, number.next_up()])
            .map(|number| u64::from(number.to_bits()))
            .collect();
        check(DType::F32, to, &singles);
    }
}

#[test]
fn single_from_double_rounds_once_everywhere() {
    let mut singles = vec![0u32, 1, 2, 0x7f_ffff, 0x80_0000, 0x80_0001, 0x7f7f_ffff];
    singles.extend((0..255).map(|exponent| exponent << 23 | 0x2a_aaab));
    let mut doubles = vec![f64::MAX, f64::INFINITY, f64::NAN, f64::from_bits(1)];
    for single in singles {
        let lower = f64::from(f32::from_bits(single));
        let upper = f64::from(f32::from_bits(single).next_up());
        let upper = if upper.is_finite() { upper } else { 2f64.powi(128) };
        for place in [lower, (lower + upper) / 2.0] {
            doubles.extend([place.next_down(), place, place.next_up()]);
        }
    }
    let codes: Vec<u64> =
        doubles.iter().flat_map(|&number| [number.to_bits(), (-number).to_bits()]).collect();
    check(DType::F64, DType::F32, &codes);
}

proptest! {
    #[test]
    fn random_bits_convert_right(codes in proptest::collection::vec(any::<u64>(), 0..700), to in 0..8usize) {
        for from in [DType::F32, DType::F64] {
            if from != FLOATS[to] {
                let mask = if from == DType::F32 { u64::from(u32::MAX) } else { u64::MAX };
                check(from, FLOATS[to], &codes.iter().map(|code| code & mask).collect::<Vec<_>>());
            }
        }
    }

    /// Values that are likely to be within range of the narrow formats.
    #[test]
    fn random_numbers_convert_right(numbers in proptest::collection::vec(-70_000f64..70_000.0, 0..700), scale in -30..3i32) {
        for to in FLOATS {
            let scaled = || numbers.iter().map(|number| number * 2f64.powi(scale));
            if to != DType::F64 {
                check(DType::F64, to, &scaled().map(f64::to_bits).collect::<Vec<_>>());
            }
            if to != DType::F32 {
                check(DType::F32, to, &scaled().map(|number| u64::from((number as f32).to_bits())).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn integers_keep_their_value_or_are_refused(bits in any::<u64>(), small in 0..64u32, at in 0..5usize) {
        for from in INTEGERS {
            for to in INTEGERS.into_iter().filter(|&to| to != from) {
                let value = integer(from, (bits as i64 >> small) as u64);
                let (from_bytes, to_bytes) = (integer_bytes(from), integer_bytes(to));
                let mut src = vec![0; 5 * from_bytes];
                src[at * from_bytes..][..from_bytes].copy_from_slice(&value.to_le_bytes()[..from_bytes]);
                let mut dst = vec![0xa5; 5 * to_bytes];
                let result = Converter::new(from, to).unwrap().convert(&src, &mut dst);
                if integer(to, value as u64) == value {
                    prop_assert!(result.is_ok());
                    let mut word = [0; 8];
                    word[..to_bytes].copy_from_slice(&dst[at * to_bytes..][..to_bytes]);
                    prop_assert_eq!(integer(to, u64::from_le_bytes(word)), value, "{} -> {}", from, to);
                } else {
                    prop_assert_eq!(result, Err(ConvertError::OutOfRange { index: at, value, to }), "{}", from);
                }
            }
        }
    }
}

/// The low bits as an integer of this dtype.
fn integer(dtype: DType, bits: u64) -> i128 {
    match dtype {
        DType::U8 => i128::from(bits as u8),
        DType::I8 => i128::from(bits as i8),
        DType::U16 => i128::from(bits as u16),
        DType::I16 => i128::from(bits as i16),
        DType::U32 => i128::from(bits as u32),
        DType::I32 => i128::from(bits as i32),
        DType::U64 => i128::from(bits),
        _ => i128::from(bits as i64),
    }
}

fn integer_bytes(dtype: DType) -> usize {
    match dtype {
        DType::U8 | DType::I8 => 1,
        DType::U16 | DType::I16 => 2,
        DType::U32 | DType::I32 => 4,
        _ => 8,
    }
}

/// Bits, not only values: which NaN comes out, and that FNUZ has no negative zero.
#[test]
fn nan_is_quiet_with_its_payload_and_fnuz_zero_has_no_sign() {
    let convert = |from, to, src: &[u8], bytes| {
        let mut dst = vec![0; bytes];
        Converter::new(from, to).unwrap().convert(src, &mut dst).unwrap();
        dst
    };
    let signalling = 0xff80_0001u32.to_le_bytes();
    assert_eq!(convert(DType::F32, DType::BF16, &signalling, 2), 0xffc0u16.to_le_bytes());
    assert_eq!(convert(DType::F32, DType::F16, &signalling, 2), 0xfe00u16.to_le_bytes());
    assert_eq!(convert(DType::F32, DType::F64, &signalling, 8), 0xfff8_0000_2000_0000u64.to_le_bytes());
    assert_eq!(convert(DType::F32, DType::F8E5M2, &signalling, 1), [0xfe]);
    assert_eq!(convert(DType::F32, DType::F8E4M3, &signalling, 1), [0xff]);
    assert_eq!(convert(DType::F32, DType::F8E4M3Fnuz, &signalling, 1), [0x80]);
    assert_eq!(convert(DType::BF16, DType::F32, &0x7f81u16.to_le_bytes(), 4), 0x7fc1_0000u32.to_le_bytes());
    assert_eq!(convert(DType::F16, DType::F32, &0x7c01u16.to_le_bytes(), 4), 0x7fc0_2000u32.to_le_bytes());
    for tiny in [-0.0f32, -1e-30] {
        assert_eq!(convert(DType::F32, DType::F8E5M2Fnuz, &tiny.to_le_bytes(), 1), [0]);
        assert_eq!(convert(DType::F32, DType::F8E5M2, &tiny.to_le_bytes(), 1), [0x80]);
    }
}

#[test]
fn what_never_converts_has_no_converter_and_lengths_must_fit() {
    for &from in DType::ALL {
        for &to in DType::ALL {
            let both = |group: &[DType]| group.contains(&from) && group.contains(&to);
            let expected = from != to && (both(&FLOATS) || both(&INTEGERS));
            assert_eq!(Converter::new(from, to).is_some(), expected, "{from} -> {to}");
        }
    }
    let converter = Converter::new(DType::F32, DType::BF16).unwrap();
    for (from, to) in [(4, 4), (5, 2), (8, 2), (0, 2)] {
        let result = converter.convert(&vec![0; from], &mut vec![0; to]);
        assert_eq!(result, Err(ConvertError::Lengths { from, to }));
    }
    assert_eq!(converter.convert(&[], &mut []), Ok(ConvertCounts::default()));
}
