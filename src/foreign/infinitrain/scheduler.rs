//! lr_scheduler.ckpt: named values in a binary file.
//!
//! `u32 magic | u32 version | u32 count`, then per item `u32 length, name | u8 type | value`, little endian.

use crate::foreign::ForeignError;
use serde_json::{Map, Number, Value};

const MAGIC: u32 = 0x5352_4c53;
const VERSION: u32 = 1;

/// The items by name as a JSON object. `f32` becomes the `f64` of the same value.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Value, ForeignError> {
    items(bytes).map_err(|why| ForeignError::Malformed {
        file: file.to_owned(),
        why: format!("not the state of a scheduler: {why}"),
    })
}

fn items(bytes: &[u8]) -> Result<Value, String> {
    let mut rest = Reader { bytes };
    let magic = u32::from_le_bytes(rest.take()?);
    if magic != MAGIC {
        return Err(format!("it begins with {magic:#010x}, not {MAGIC:#010x}"));
    }
    let version = u32::from_le_bytes(rest.take()?);
    if version != VERSION {
        return Err(format!("version {version}; only version {VERSION} is read"));
    }
    let count = u32::from_le_bytes(rest.take()?);
    let mut items = Map::new();
    for _ in 0..count {
        let name = rest.string()?;
        let value = rest.value().map_err(|why| format!("item `{name}`: {why}"))?;
        if items.contains_key(&name) {
            return Err(format!("item `{name}` stands twice"));
        }
        items.insert(name, value);
    }
    if rest.bytes.is_empty() {
        Ok(Value::Object(items))
    } else {
        Err(format!("{} bytes follow the last item", rest.bytes.len()))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.bytes.split_first_chunk().ok_or("it is cut off")?;
        self.bytes = rest;
        Ok(*taken)
    }

    fn string(&mut self) -> Result<String, String> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        let (text, rest) = self.bytes.split_at_checked(length).ok_or("it is cut off")?;
        self.bytes = rest;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| "a string is not UTF-8".to_owned())
    }

    fn float(&mut self) -> Result<Value, String> {
        number(f64::from(f32::from_le_bytes(self.take()?)))
    }

    fn value(&mut self) -> Result<Value, String> {
        let [kind] = self.take()?;
        match kind {
            1 => Ok(Value::from(i64::from_le_bytes(self.take()?))),
            2 => self.float(),
            3 => number(f64::from_le_bytes(self.take()?)),
            4 => self.string().map(Value::from),
            5 => {
                let count = u64::from_le_bytes(self.take()?);
                if count > self.bytes.len() as u64 / 4 {
                    return Err("it is cut off".to_owned());
                }
                (0..count).map(|_| self.float()).collect()
            }
            other => Err(format!("unknown type {other}")),
        }
    }
}

fn number(value: f64) -> Result<Value, String> {
    Number::from_f64(value).map(Value::Number).ok_or_else(|| format!("{value} is not a number that JSON has"))
}
