//! Numbers and escapes: what both syntaxes share, and HCL's forms of numbers.

use super::Data;
use super::text::Cursor;

/// A whole number in decimal digits, with or without a minus.
pub(super) fn integer(digits: &str) -> Result<Data, String> {
    digits
        .parse()
        .map(Data::Int)
        .map_err(|_| beyond_64_bits(digits))
}

/// A number with a point or an exponent.
pub(super) fn float(text: &str) -> Result<Data, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Data::Float(number)),
        Ok(_) => Err(format!(
            "the number `{text}` is beyond the range of a double (about 1.8e308)"
        )),
        Err(_) => Err(format!("`{text}` is not a number")),
    }
}

/// A number of HCL 1: decimal, `0x` hexadecimal, octal with a leading 0, or a float.
pub(super) fn hcl_number(text: &str) -> Result<Data, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let radix = |digits: &str, radix| match i64::from_str_radix(&format!("{sign}{digits}"), radix) {
        Ok(number) => Ok(Data::Int(number)),
        Err(error) => match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
                Err(beyond_64_bits(text))
            }
            _ => Err(format!("`{text}` is not a number")),
        },
    };
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return if hex.starts_with(['+', '-']) {
            Err(format!("`{text}` is not a number"))
        } else {
            radix(hex, 16)
        };
    }
    if digits.contains(['.', 'e', 'E']) {
        return float(text);
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return if digits.chars().all(|c| matches!(c, '0'..='7')) {
            radix(digits, 8)
        } else {
            Err(format!(
                "`{text}` is not a number: a leading 0 makes it octal, with digits 0 to 7; remove the 0, or put \
                 quotes around text"
            ))
        };
    }
    if digits.is_empty() || !digits.chars().all(|c| c.is_ascii_digit()) {
        return Err(format!(
            "`{text}` is not a number: put quotes around text, and white space after a number"
        ));
    }
    radix(digits, 10)
}

/// Reads exactly `count` digits of a number; none if they aren't there, and then reads only those that are.
pub(super) fn fixed_digits(cursor: &mut Cursor<'_>, count: usize, radix: u32) -> Option<u32> {
    let mut left = count;
    let digits = cursor.take_while(|c| {
        let fits = left > 0 && c.is_digit(radix);
        left = left.saturating_sub(1);
        fits
    });
    if digits.len() == count {
        u32::from_str_radix(digits, radix).ok()
    } else {
        None
    }
}

fn beyond_64_bits(text: &str) -> String {
    format!("the number `{text}` doesn't fit into a signed 64-bit number")
}
