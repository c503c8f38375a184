use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! dtypes {
    ($($variant:ident, $bits:literal, $name:literal, $tag:literal, $doc:literal;)*) => {
        /// The element type of a tensor.
        ///
        /// A checkpoint moves elements as opaque little-endian bytes; a dtype matters for sizes, for the contract
        /// between a saved and a wanted tensor, and for conversion on load where the caller allows it.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum DType { $(#[doc = $doc] $variant,)* }

        impl DType {
            /// Every dtype, in the order of declaration.
            pub const ALL: &'static [DType] = &[$(DType::$variant,)*];

            /// Size of one element in bits; below 8 for the sub-byte types.
            pub const fn bits(self) -> u64 { match self { $(DType::$variant => $bits,)* } }

            /// The name used in metadata, rules and the command line.
            pub const fn name(self) -> &'static str { match self { $(DType::$variant => $name,)* } }

            /// The name in a safetensors header, which since safetensors 0.8 knows each of these dtypes. An older
            /// reader refuses a file that holds one it does not know.
            pub const fn safetensors_name(self) -> &'static str { match self { $(DType::$variant => $tag,)* } }
        }

        impl FromStr for DType {
            type Err = UnknownDType;
            fn from_str(name: &str) -> Result<Self, UnknownDType> {
                match name { $($name => Ok(DType::$variant),)* _ => Err(UnknownDType(name.to_owned())) }
            }
        }
    };
}

dtypes! {
    Bool, 8, "bool", "BOOL", "One byte, 0 or 1.";
    U8, 8, "u8", "U8", "Unsigned 8-bit integer.";
    I8, 8, "i8", "I8", "Signed 8-bit integer.";
    U16, 16, "u16", "U16", "Unsigned 16-bit integer.";
    I16, 16, "i16", "I16", "Signed 16-bit integer.";
    U32, 32, "u32", "U32", "Unsigned 32-bit integer.";
    I32, 32, "i32", "I32", "Signed 32-bit integer.";
    U64, 64, "u64", "U64", "Unsigned 64-bit integer.";
    I64, 64, "i64", "I64", "Signed 64-bit integer.";
    F16, 16, "f16", "F16", "IEEE 754 half precision.";
    BF16, 16, "bf16", "BF16", "bfloat16: the upper half of an f32.";
    F32, 32, "f32", "F32", "IEEE 754 single precision.";
    F64, 64, "f64", "F64", "IEEE 754 double precision.";
    F8E4M3, 8, "f8_e4m3", "F8_E4M3", "8-bit float, 4 exponent bits, finite and NaN (OCP E4M3FN).";
    F8E5M2, 8, "f8_e5m2", "F8_E5M2", "8-bit float, 5 exponent bits, with infinities (OCP E5M2).";
    F8E4M3Fnuz, 8, "f8_e4m3fnuz", "F8_E4M3FNUZ", "8-bit float E4M3, bias 8, one NaN, no negative zero.";
    F8E5M2Fnuz, 8, "f8_e5m2fnuz", "F8_E5M2FNUZ", "8-bit float E5M2, bias 16, one NaN, no negative zero.";
    C64, 64, "c64", "C64", "Complex of two f32.";
    F8E8M0, 8, "f8_e8m0", "F8_E8M0", "8-bit power-of-two scale (OCP MX); opaque.";
    F6E2M3, 6, "f6_e2m3", "F6_E2M3", "6-bit float E2M3 (OCP MX), packed; opaque.";
    F6E3M2, 6, "f6_e3m2", "F6_E3M2", "6-bit float E3M2 (OCP MX), packed; opaque.";
    F4, 4, "f4", "F4", "4-bit float E2M1 (OCP MX), packed; opaque.";
}

/// A dtype name that this version does not know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown dtype `{0}`; known are the names of `DType::ALL`, such as bf16, f32, f8_e4m3, i64")]
pub struct UnknownDType(pub String);

impl DType {
    /// Size of one element in bytes; `None` for the opaque types, whose tensors are stored whole as bytes.
    pub const fn element_bytes(self) -> Option<u64> {
        if self.is_opaque() { None } else { Some(self.bits() / 8) }
    }

    /// Whether tensors of this dtype can only be saved and loaded whole: packed sub-byte elements and block
    /// scales have no element that a region could address on its own.
    pub const fn is_opaque(self) -> bool {
        matches!(self, DType::F8E8M0 | DType::F6E2M3 | DType::F6E3M2 | DType::F4)
    }

    /// Whether this is a floating-point type that a load may convert.
    pub const fn is_float(self) -> bool {
        use DType::*;
        matches!(self, F16 | BF16 | F32 | F64 | F8E4M3 | F8E5M2 | F8E4M3Fnuz | F8E5M2Fnuz)
    }

    /// Whether this is an integer type that a load may convert. `bool` is not one.
    pub const fn is_integer(self) -> bool {
        use DType::*;
        matches!(self, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for DType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_sizes_are_whole_bytes_unless_opaque() {
        for &dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
            assert_eq!(dtype.element_bytes().is_none(), dtype.is_opaque());
            if let Some(bytes) = dtype.element_bytes() {
                assert_eq!(bytes * 8, dtype.bits());
            }
        }
        assert_eq!("fp31".parse::<DType>().unwrap_err(), UnknownDType("fp31".into()));
    }
}
