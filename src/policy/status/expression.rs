//! Expressions over an answer, in the Common Expression Language.
//!
//! An expression is compiled and checked when the policy is loaded. Besides the syntax, its names
//! are checked: a variable that no answer has would make every evaluation an error, and a rule
//! whose evaluation is an error claims nothing, so a slip of the pen would pass in silence.
//!
//! Three bounds keep an evaluation small whatever the answer is. The text is short and not deeply
//! nested; an answer is neither (64 KiB, [`value`](super::value)); and what stands in a macro is about
//! what the macro has in hand: another macro ranges over it, `in` looks into it or into a list that is written
//! out, and no variable stands there as a whole. So nothing makes a square of a long list. What is left (a
//! pattern for each element) takes its time where no caller waits for it: questions have threads of their
//! own, and so has a call with long arguments.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
    thread,
};

use cel::{
    Context, Env, ParseError, Program, Value,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr},
    common::value::{CowVal, Val},
};

use super::excerpt;
use crate::policy::mistake::did_you_mean;

/// The longest expression, in bytes.
const SOURCE_BYTES_MAX: usize = 1024;
/// How deep an expression may be nested. Without optimization a level takes some 40 KiB of the stack to
/// evaluate, and half of the 2 MiB of a thread of the runtime has to do.
const DEPTH_MAX: usize = 24;
/// The stack to parse it on: four times what the worst text of that length takes without optimization.
const PARSER_STACK_BYTES: usize = 64 << 20;

/// What an expression may ask of an answer.
const ANSWER: &[&str] = &["status", "headers", "body"];

/// What an expression may ask of a call.
const CALL: &[&str] = &["args", "tool", "run_id", "labels"];

/// Variables that may be long: what stands in a macro is looked at once for each element.
const LARGE: &[&str] = &["headers", "body", "args", "labels"];

/// What the parser makes of `_[_]` and of `in`.
const INDEX: &str = "_[_]";
const IN: &str = "@in";

/// The functions, each with how many arguments it takes after the value it is called on, if it is
/// called on one.
const FUNCTIONS: [(&str, Option<usize>, Option<usize>); 20] = [
    ("bool", Some(1), None),
    ("bytes", Some(1), None),
    ("double", Some(1), None),
    ("dyn", Some(1), None),
    ("int", Some(1), None),
    ("string", Some(1), None),
    ("type", Some(1), None),
    ("uint", Some(1), None),
    ("size", Some(1), Some(0)),
    ("matches", Some(2), Some(1)),
    ("contains", None, Some(1)),
    ("endsWith", None, Some(1)),
    ("startsWith", None, Some(1)),
    ("hasValue", None, Some(0)),
    ("value", None, Some(0)),
    ("or", None, Some(1)),
    ("orValue", None, Some(1)),
    ("optional.none", Some(0), None),
    ("optional.of", Some(1), None),
    ("optional.ofNonZeroValue", Some(1), None),
];

/// What the parser turns into something else, so that it is a call only where it is called wrongly.
const MACROS: [&str; 9] =
    ["has", "all", "exists", "exists_one", "map", "filter", "existsOne", "optMap", "optFlatMap"];

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// A checked expression. Two are equal if they are written alike.
pub(in crate::policy) struct Expression {
    source: String,
    program: Program,
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.source)
    }
}

impl Expression {
    /// The expression that a policy writes about an answer.
    ///
    /// # Errors
    ///
    /// What is wrong with it, each with its place in the expression.
    pub(in crate::policy) fn compile(source: &str) -> Result<Self, Vec<String>> {
        Self::compile_over(ANSWER, source)
    }

    /// The expression that a policy writes about a call.
    ///
    /// # Errors
    ///
    /// As of [`Self::compile`].
    pub(in crate::policy) fn compile_for_call(source: &str) -> Result<Self, Vec<String>> {
        Self::compile_over(CALL, source)
    }

    fn compile_over(variables: &'static [&'static str], source: &str) -> Result<Self, Vec<String>> {
        if source.trim().is_empty() {
            return Err(vec!["must be an expression".to_owned()]);
        }
        if source.len() > SOURCE_BYTES_MAX {
            let length = source.len();
            return Err(vec![format!("must have {SOURCE_BYTES_MAX} bytes or less, not {length}")]);
        }
        let program = parse(source).map_err(|problem| vec![problem])?;
        let root = program.expression();
        if depth(root) > DEPTH_MAX {
            return Err(vec![format!("must not be nested deeper than {DEPTH_MAX}")]);
        }
        let mut check = Check { source, variables, program: &program, problems: BTreeMap::new() };
        check.variables(root);
        check.expression(root, None);
        let problems: Vec<String> = check.problems.into_values().collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(Self { source: source.to_owned(), program })
    }

    /// The text.
    pub(in crate::policy) fn source(&self) -> &str {
        &self.source
    }

    /// The value for an answer, or briefly why there is none.
    pub(in crate::policy) fn evaluate<'a>(
        &'a self,
        answer: &'a Context<'_, 'a>,
    ) -> Result<CowVal<'a, 'a>, String> {
        Value::resolve_val(self.program.expression(), answer)
            .map_err(|error| excerpt(&error.to_string()))
    }
}

/// The variables of one answer, or of one call.
pub(in crate::policy) fn context<'v, const N: usize>(
    variables: [(&str, Box<dyn Val + 'v>); N],
) -> Context<'v, 'v> {
    let mut context = Context::with_env(Arc::clone(&ENV));
    for (name, value) in variables {
        debug_assert!(ANSWER.contains(&name) || CALL.contains(&name));
        context.add_variable_as_val(name, value);
    }
    context
}

/// Parses an expression, on a stack of its own: without optimization the parser takes some 180 KiB of
/// it for each bracket, so that a dozen would be too many for a thread of the runtime.
fn parse(source: &str) -> Result<Program, String> {
    let parse = || {
        ENV.compile(source).map_err(|errors| {
            // What follows the first one is often only its echo.
            let first = errors.errors.first().map(|error| syntax_problem(source, error));
            first.unwrap_or_else(|| "is no expression".to_owned())
        })
    };
    thread::scope(|scope| {
        let parser = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
        match parser.spawn_scoped(scope, parse) {
            Ok(parser) => parser.join().unwrap_or_else(|_| Err("is no expression".to_owned())),
            Err(error) => Err(format!("cannot be read now: {error}")),
        }
    })
}

fn syntax_problem(source: &str, error: &ParseError) -> String {
    let (line, column) = error.pos;
    // Where the parser gives no place, the message says enough.
    if line < 1 || column < 1 {
        if error.msg.contains("Recurs") {
            return "is nested too deeply".to_owned();
        }
        return format!("is no expression: {}", excerpt(&error.msg));
    }
    format!("{}: {}", place(source, line as usize, column as usize), excerpt(&error.msg))
}

/// A place in an expression, as people count.
fn place(source: &str, line: usize, column: usize) -> String {
    if source.trim_end().contains('\n') {
        format!("line {line}, column {column} of the expression")
    } else {
        format!("column {column} of the expression")
    }
}

/// How deep an expression is nested. Its length bounds the recursion.
fn depth(expression: &IdedExpr) -> usize {
    1 + parts(expression).into_iter().map(depth).max().unwrap_or(0)
}

/// The expressions that one consists of.
fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Comprehension(it) => {
            let ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, .. } =
                &**it;
            vec![iter_range, accu_init, loop_cond, loop_step, result]
        }
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Struct(it) => it.entries.iter().flat_map(|entry| entry_parts(&entry.expr)).collect(),
        Expr::Select(select) => vec![&select.operand],
    }
}

fn entry_parts(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// The names that are not bound within an expression, each with the place it first stands at.
fn free<'a>(
    expression: &'a IdedExpr,
    bound: &mut Vec<&'a str>,
    found: &mut BTreeMap<&'a str, u64>,
) {
    match &expression.expr {
        Expr::Ident(name) if !bound.contains(&name.as_str()) => {
            found.entry(name).or_insert(expression.id);
        }
        Expr::Comprehension(it) => {
            free(&it.iter_range, bound, found);
            free(&it.accu_init, bound, found);
            let before = bound.len();
            bound.push(&it.accu_var);
            let variables = std::iter::once(&it.iter_var).chain(&it.iter_var2);
            bound.extend(variables.map(String::as_str));
            for part in [&it.loop_cond, &it.loop_step, &it.result] {
                free(part, bound, found);
            }
            bound.truncate(before);
        }
        _ => parts(expression).into_iter().for_each(|part| free(part, bound, found)),
    }
}

/// What is wrong with the names of an expression, by their place.
struct Check<'a> {
    source: &'a str,
    variables: &'static [&'static str],
    program: &'a Program,
    problems: BTreeMap<(usize, String), String>,
}

impl<'a> Check<'a> {
    fn wrong(&mut self, id: u64, problem: String) {
        let offset = self.program.source_info().offset_for(id).map_or(0, |(start, _)| start);
        let before = self.source.get(..offset as usize).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let told = format!("{}: {problem}", place(self.source, line, column));
        self.problems.insert((offset as usize, problem), told);
    }

    fn variables(&mut self, root: &'a IdedExpr) {
        let mut found = BTreeMap::new();
        free(root, &mut Vec::new(), &mut found);
        for (name, id) in found {
            // The functions of `optional` are written as if it were a variable.
            let is_known = self.variables.contains(&name) || name == "optional";
            if !is_known && ENV.types().find_type(name).is_none() {
                let hint = did_you_mean(name, self.variables);
                let known = self.variables.join(", ");
                self.wrong(id, format!("unknown variable {name}{hint}; known: {known}"));
            }
        }
    }

    /// Checks calls, and the ranges of macros; `over` is the variable of the macro around.
    fn expression(&mut self, expression: &'a IdedExpr, over: Option<&'a str>) {
        match &expression.expr {
            Expr::Call(call) => {
                self.call(expression.id, call);
                self.search(expression.id, call, over);
                if call.func_name == INDEX
                    && let [operand, index] = &call.args[..]
                {
                    self.operand(operand, over);
                    return self.expression(index, over);
                }
            }
            Expr::Select(select) => return self.operand(&select.operand, over),
            Expr::Ident(name) if over.is_some() && LARGE.contains(&name.as_str()) => {
                let problem =
                    format!("{name} as a whole cannot stand in a macro; name a member of it");
                self.wrong(expression.id, problem);
            }
            Expr::Struct(it) => {
                self.wrong(expression.id, format!("unknown type {}", it.type_name));
            }
            Expr::Comprehension(it) => {
                if let Some(over) = over {
                    let mut names = BTreeMap::new();
                    free(&it.iter_range, &mut Vec::new(), &mut names);
                    if names.into_keys().any(|name| name != over) {
                        let problem = format!("a macro inside another must range over its {over}");
                        self.wrong(expression.id, problem);
                    }
                }
                for part in [&it.iter_range, &it.accu_init, &it.result] {
                    self.expression(part, over);
                }
                for part in [&it.loop_cond, &it.loop_step] {
                    self.expression(part, Some(&it.iter_var));
                }
                return;
            }
            _ => {}
        }
        for part in parts(expression) {
            self.expression(part, over);
        }
    }

    /// What a member is taken of.
    fn operand(&mut self, operand: &'a IdedExpr, over: Option<&'a str>) {
        if !matches!(operand.expr, Expr::Ident(_)) {
            self.expression(operand, over);
        }
    }

    /// Each of one list searched for in another one is their product.
    fn search(&mut self, id: u64, call: &'a CallExpr, over: Option<&'a str>) {
        let (Some(over), IN, [_, list]) = (over, call.func_name.as_str(), &call.args[..]) else {
            return;
        };
        let mut names = BTreeMap::new();
        free(list, &mut Vec::new(), &mut names);
        if names.into_keys().any(|name| name != over) {
            let problem = format!(
                "`in` inside a macro must look into a list that is written out, or into its {over}"
            );
            self.wrong(id, problem);
        }
    }

    fn call(&mut self, id: u64, call: &CallExpr) {
        let name = call.func_name.as_str();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !name.chars().all(is_word) || name.starts_with('_') && name.ends_with('_') {
            return;
        }
        let (name, is_method) = match call.target.as_deref().map(|target| &target.expr) {
            Some(Expr::Ident(target)) if target == "optional" => {
                (format!("optional.{name}"), false)
            }
            target => (name.to_owned(), target.is_some()),
        };
        if MACROS.contains(&name.as_str()) {
            self.wrong(id, format!("{name} is not called like this"));
            return;
        }
        let Some((_, global, method)) = FUNCTIONS.iter().find(|(known, _, _)| *known == name)
        else {
            let known: Vec<&str> =
                FUNCTIONS.iter().map(|(known, _, _)| *known).chain(MACROS).collect();
            self.wrong(id, format!("unknown function {name}{}", did_you_mean(&name, &known)));
            return;
        };
        let wanted = if is_method { method } else { global };
        if *wanted != Some(call.args.len()) {
            self.wrong(id, format!("{name} is not called like this"));
        }
    }
}

#[cfg(test)]
mod tests;
