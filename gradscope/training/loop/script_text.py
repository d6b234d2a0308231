"""Finds mistakes by the script's text: shuffled arrays, views in the place of a permutation,
discarded losses and updates, dropout in evaluation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from torch import nn

from gradscope.explain.shared.frames import (
    assignments,
    classes_of_script,
    innermost,
    is_at,
    last_name,
    shown,
    tree_of,
)
from gradscope.records.loop_figures import LoopFact
from gradscope.training.loop.script_lines import ScriptLine, main_text

_PERMUTATIONS = frozenset({"randperm", "permutation"})


def shuffled_alone() -> Iterator[LoopFact]:
    """Yield assignments such as ``x = x[perm]`` in the main module's file, if nothing else uses the
    permutation; and batches such as ``x[perm[i:j]]`` beside ``y[i:j]``."""
    found = main_text()
    if found is None:
        return
    file, tree = found
    uses: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id] = uses.get(node.id, 0) + 1
    drawn = {one for node in ast.walk(tree) for one in _drawn(node)}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(value=ast.Name(id=of), slice=index),
            ) if name == of and not _is_seeded(index):
                once = isinstance(index, ast.Name) and index.id in drawn and uses[index.id] == 1
                if once or _is_permutation(index):
                    line = f"{shown(file)}:{node.lineno}"
                    yield LoopFact("shuffled-alone", name, location=line)
    for block in _blocks(tree):
        for mixed, sliced, lineno in _mixed(block, drawn):
            line = f"{shown(file)}:{lineno}"
            yield LoopFact("shuffled-alone", mixed, words=(sliced,), location=line)


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield each block of statements, except those of ``finally``."""
    for node in ast.walk(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                yield block


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the body of each loop."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            yield node.body


def _mixed(block: list[ast.stmt], drawn: set[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the arrays of a batch, and its line, if one array is in the order of a permutation and
    the other is a slice from the same place. None if the sliced array is also used in the permuted
    order."""
    places: dict[str, ast.Slice] = {}
    mixed: dict[str, list[str]] = {}
    sliced: dict[str, list[tuple[str, int]]] = {}
    for statement in block:
        match statement:
            case ast.Assign(
                targets=[ast.Name(id=index)],
                value=ast.Subscript(value=ast.Name(id=of), slice=ast.Slice() as part),
            ) if of in drawn:
                places[index] = part
                continue
        for node in ast.walk(statement):
            match node:
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Name(id=index)) if (
                    index in places
                ):
                    mixed.setdefault(ast.dump(places[index]), []).append(name)
                case ast.Subscript(
                    value=ast.Name(id=name),
                    slice=ast.Subscript(value=ast.Name(id=of), slice=ast.Slice() as part),
                ) if of in drawn:
                    mixed.setdefault(ast.dump(part), []).append(name)
                case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice() as part) if (
                    name not in drawn
                ):
                    sliced.setdefault(ast.dump(part), []).append((name, node.lineno))
    for place, names in mixed.items():
        for name, lineno in sliced.get(place, ()):
            if name not in names:
                yield names[0], name, lineno
                return


def _drawn(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a statement sets to a new permutation."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_permutation(value):
            yield name


def _is_permutation(value: ast.expr) -> bool:
    """Return True for a call as ``torch.randperm(n)`` or ``np.random.permutation(n)``."""
    return isinstance(value, ast.Call) and last_name(value.func) in _PERMUTATIONS


def shuffled_apart() -> Iterator[LoopFact]:
    """Yield pairs of arrays that a block of the main module's file shuffles one after the other, as
    ``x = rng.permutation(x)`` and ``np.random.shuffle(y)``, and then takes as pairs: in equal
    slices, or in one call of ``zip`` or ``TensorDataset``.

    A seed that is set in between gives both the same order.
    """
    file, tree = main_text() or ("", ast.Module([], []))
    for block in _bodies(tree):
        for first, second, lineno in _apart(block, tree):
            line = f"{shown(file)}:{lineno}"
            certain = ("labels",) if _are_data_and_labels(first, second, tree) else ()
            yield LoopFact("shuffled-apart", second, words=(first, *certain), location=line)


def zipped_labels(at: ScriptLine) -> Iterator[LoopFact]:
    """Yield the loop on this line over ``zip`` of two data loaders, as ``for image, target in
    zip(images, targets)``, if its second variable goes into no call but a loss of what is made of
    the first."""
    file, tree = at.file, tree_of(at.file) or ast.Module([], [])
    for loop in ast.walk(tree):
        match loop:
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)]),
                iter=ast.Call(func=ast.Name(id="zip"), args=[_, _]),
            ) if is_at(loop.iter, at.line) and _are_data_and_target(first, second, loop, tree):
                line = f"{shown(file)}:{loop.lineno}"
                yield LoopFact("shuffled-apart", second, words=(first, "labels"), location=line)


#: Losses, and classes of losses, that compare rows one by one.
_BY_ROWS = re.compile(
    r"^(smooth_)?(mse|l1|huber|nll|cross_entropy|binary_cross_entropy)(_loss|_with_logits)?$|"
    r"^(MSE|L1|SmoothL1|Huber|NLL|CrossEntropy|BCE|BCEWithLogits)Loss$"
)


def _are_data_and_target(first: str, second: str, loop: ast.For, tree: ast.Module) -> bool:
    """Return True if the loop's calls use the second variable only in losses of results of the
    first."""
    calls = [node for one in loop.body for node in ast.walk(one) if isinstance(node, ast.Call)]
    made = {
        name
        for one in (node for part in loop.body for node in ast.walk(part))
        if isinstance(one, ast.Assign) and first in _names(one.value, ast.Load)
        for target in one.targets
        for name in _names(target, ast.Store)
    }
    loads = [
        node
        for one in loop.body
        for node in ast.walk(one)
        if isinstance(node, ast.Name) and node.id == second
    ]
    found = False
    for call in calls:
        given = [*call.args, *(one.value for one in call.keywords)]
        plain = {one.id for one in given if isinstance(one, ast.Name)}
        if second not in plain:
            continue
        loads = [node for node in loads if node not in given]
        others = {name for one in given for name in _names(one, ast.Load)} - {second}
        if first in plain or not others & {first, *made}:
            return False
        kinds = [
            last_name(one.value.func)
            for one in assignments(tree, last_name(call.func))
            if isinstance(one.value, ast.Call)
        ] or [last_name(call.func)]
        found = found or all(map(_BY_ROWS.search, kinds))
    return found and not loads  # nothing else reads it


#: What takes arrays whose rows belong together.
_PAIRING = frozenset({"zip", "TensorDataset", "train_test_split"})


def _apart(block: Sequence[ast.stmt], tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Yield two arrays that a block shuffles separately, and the line of the second."""
    shuffled: list[tuple[list[str], str | None]] = []
    for statement in block:
        reordered = _reordered(statement)
        if reordered is not None:
            names, seed = reordered
            for before, earlier in shuffled:
                if seed is not None and seed == earlier:
                    continue
                for one, other in product(before, names):
                    kept = _is_kept(one, before) or _is_kept(other, names)
                    if one != other and not kept and _are_pairs(one, other, tree):
                        yield one, other, statement.lineno
            shuffled.append((names, seed))
        elif _is_seeded(statement):
            shuffled.clear()


def _is_kept(name: str, together: Sequence[str]) -> bool:
    """Return True for labels that are shuffled together with other arrays, their data."""
    return len(together) > 1 and _LABELS.search(name) is not None


#: Parts of the names of what sets the state of a random generator, or makes one.
_SEEDS = ("seed", "state", "rng", "Random", "Generator")


def _is_seeded(node: ast.AST) -> bool:
    """Return True if a call in a statement or expression sets or makes a random generator.

    Two generators with one seed give two arrays the same order.
    """
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(part in last_name(call.func) for call in calls for part in _SEEDS)


def _reordered(statement: ast.stmt) -> tuple[list[str], str | None] | None:
    """Return the arrays that a statement puts into one random order, and the text of its seed; None
    for another statement."""
    if _is_seeded(statement):
        return None
    match statement:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=function, args=[ast.Name(id=of)], keywords=[]),
        ) if name == of and last_name(function) == "permutation":
            return [name], None
        case ast.Expr(value=ast.Call(func=function, args=[ast.Name(id=name)], keywords=[])) if (
            last_name(function) == "shuffle"
        ):
            return [name], None
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id=of), slice=index)
        ) if name == of and _is_permutation(index):
            return [name], None
        case ast.Assign(
            targets=[target], value=ast.Call(func=function, args=args, keywords=options)
        ) if last_name(function) == "shuffle":  # scikit-learn's, which returns copies
            names = list(
                map(ast.unparse, target.elts if isinstance(target, ast.Tuple) else [target])
            )
            if names == list(map(ast.unparse, args)):
                seeds = [ast.unparse(one.value) for one in options if one.arg == "random_state"]
                return names, next((one for one in seeds if one != "None"), None)
    return None


#: Names of labels that may be shuffled apart from their data.
_LABELS = re.compile(r"(^|_)(y|labels?|targets?|ratings?|answers?)($|_)")
#: Words of data without pairs, as a source and a target domain.
_DOMAINS = re.compile(r"source|src|domain|unpaired", re.IGNORECASE)


def _are_data_and_labels(first: str, second: str, tree: ast.Module) -> bool:
    """Return True if one call gives both arrays, as in ``x, y = load()``, and one of them is named
    as labels."""
    if bool(_LABELS.search(first)) == bool(_LABELS.search(second)):
        return False
    if _DOMAINS.search(first) or _DOMAINS.search(second):
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(func=called)):
                if _DOMAINS.search(ast.unparse(called)):
                    continue
                if {first, second} <= {one.id for one in names if isinstance(one, ast.Name)}:
                    return True
    return False


def _are_pairs(first: str, second: str, tree: ast.Module) -> bool:
    """Return True if the text takes equal slices of two arrays, passes both to one call, or gets
    data and labels from one call."""
    if _are_data_and_labels(first, second, tree):
        return True
    slices: dict[str, set[str]] = {first: set(), second: set()}
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=part) if name in slices:
                slices[name].add(ast.dump(part))
            case ast.Call(func=function) if last_name(function) in _PAIRING:
                given = {
                    n.id for one in node.args for n in ast.walk(one) if isinstance(n, ast.Name)
                }
                if {first, second} <= given:
                    return True
    return bool(slices[first] & slices[second])


#: Words in the name of data that a model is evaluated on.
_EVALUATED = re.compile(
    r"(?<![a-z])(test|val|valid|validation|eval|dev|holdout)(?![a-z])|_te\b|_va\b"
)
_TRAINED = re.compile(r"(?<![a-z])train|_tr\b")
#: Embeddings that can only place the data that they are fitted to.
_FITTED_ONLY = frozenset({"TSNE", "MDS", "SpectralEmbedding"})


def refitted_transforms() -> Iterator[LoopFact]:
    """Yield calls such as ``encoder.fit_transform(val_names)`` in the main module's file, if the
    same object is fitted on other data above: it then forgets what it learned there."""
    file, tree = main_text() or ("", ast.Module([], []))
    fitted: dict[tuple[int, str], ast.Call] = {}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda one: one.lineno):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name() | ast.Attribute() as of, attr=method),
                args=[given, *_],
            ) if method in ("fit", "fit_transform"):
                scope = id(innermost(tree, call.lineno))
                first = fitted.setdefault((scope, ast.unparse(of)), call)
                data = ast.unparse(given).lower()
                data = re.sub(r"\.to\([^()]*\)", "", data)  # ``x.to(dev)``
                trained = ast.unparse(first.args[0]).lower()
                again = first is not call and method == "fit_transform"
                if not again or not _EVALUATED.search(data) or _TRAINED.search(data):
                    continue
                another = _is_another(ast.unparse(of), first, call, tree)
                if not another and not _EVALUATED.search(trained):
                    line, before = (f"{shown(file)}:{one.lineno}" for one in (call, first))
                    words = ast.unparse(call), before
                    yield LoopFact("refitted", ast.unparse(of), words=words, location=line)


def _is_another(name: str, first: ast.Call, second: ast.Call, tree: ast.Module) -> bool:
    """Return True if a variable is set anew between two calls, if only one of them runs, or if its
    class has no ``transform``."""
    made = assignments(tree, name)
    if any(first.lineno < one.lineno <= second.lineno for one in made):
        return True
    if any(isinstance(o.value, ast.Call) and last_name(o.value.func) in _FITTED_ONLY for o in made):
        return True
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            body, other = (
                {inner for one in part for inner in ast.walk(one)}
                for part in (node.body, node.orelse)
            )
            if first in body and second in other:
                return True
    return False


def truncated_masks() -> Iterator[LoopFact]:
    """Yield calls such as ``to_tensor(mask).long()`` in the main module's file, where ``to_tensor``
    is only ever set to ``ToTensor()``: it divides bytes by 255, and ``long`` rounds them down to
    0."""
    file, tree = main_text() or ("", ast.Module([], []))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=of, attr="long"), args=[]) if _is_scaled(
                of, tree
            ):
                line = f"{shown(file)}:{node.lineno}"
                yield LoopFact("truncated-masks", words=(ast.unparse(node),), location=line)


def _is_scaled(node: ast.expr, tree: ast.Module) -> bool:
    """Return True for a call of ``ToTensor()`` or of a variable that is set to it, with nothing
    after it but methods that move no number."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in ("squeeze", "unsqueeze", "contiguous", "flatten"):
            break
        node = node.func.value
    if isinstance(node, ast.Subscript):
        node = node.value
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    if isinstance(node.func, ast.Call):
        return last_name(node.func.func) == "ToTensor"
    made = [one.value for one in assignments(tree, ast.unparse(node.func))]
    return bool(made) and all(
        isinstance(one, ast.Call) and last_name(one.func) == "ToTensor" for one in made
    )


def reversed_returns() -> Iterator[LoopFact]:
    """Yield lists of discounted returns in the main module's file that a loop over ``reversed(r)``
    or ``r[::-1]`` appends to, if nothing turns the list round afterwards."""
    file, tree = main_text() or ("", ast.Module([], []))
    for node in ast.walk(tree):
        if not isinstance(node, ast.For) or not _is_reversed(node.iter):
            continue
        sums = {
            name
            for one in ast.walk(node)
            if isinstance(one, ast.Assign) and len(one.targets) == 1
            for name in _names(one.targets[0], ast.Store)
            if _is_discounted(one.value, name)
        }
        for call in ast.walk(node):
            match call:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="append"),
                    args=[ast.Name(id=added)],
                ) if added in sums and _is_used(name, innermost(tree, node.lineno), node):
                    line = f"{shown(file)}:{call.lineno}"
                    yield LoopFact("reversed-returns", name, words=(added,), location=line)


def seeded_draws() -> Iterator[LoopFact]:
    """Yield the lines of functions of the main module's file that seed a new generator and draw
    from it, if a loop calls the function: it draws the same each time."""
    file, tree = main_text() or ("", ast.Module([], []))
    loops = [one for one in ast.walk(tree) if isinstance(one, ast.For | ast.While)]
    called = {
        last_name(call.func)
        for loop in loops
        for call in ast.walk(loop)
        if isinstance(call, ast.Call)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name not in called:
            continue
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
        if not any(option.arg == "generator" for call in calls for option in call.keywords):
            continue
        for call in calls:
            match call.func:
                case ast.Attribute(value=ast.Call(func=made), attr="manual_seed"):
                    if last_name(made) == "Generator":
                        line = f"{shown(file)}:{call.lineno}"
                        yield LoopFact("seeded-draw", function.name, location=line)


def thawing_conditions() -> Iterator[LoopFact]:
    """Yield the comparisons of epochs or steps on which the main module's file sets
    ``requires_grad``, as ``p.requires_grad = epoch >= 5`` or ``if epoch == 5:
    net.requires_grad_(True)``."""
    file, tree = main_text() or ("", ast.Module([], []))
    for node in ast.walk(tree):
        for value in _thaws(node):
            if isinstance(value, ast.Name):
                scope = innermost(tree, value.lineno)
                made = [one.value for one in assignments(scope, value.id)]
                value = made[0] if len(made) == 1 and made[0] is not None else value
            if isinstance(value, ast.Compare) and _is_of_numbers(value):
                line = f"{shown(file)}:{value.lineno}"
                yield LoopFact("thaw", words=(ast.unparse(value),), location=line)


def _thaws(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement sets ``requires_grad`` to, and the condition of one that sets True."""
    match node:
        case ast.Assign(targets=[ast.Attribute(attr="requires_grad")], value=value):
            yield value
        case ast.Call(func=ast.Attribute(attr="requires_grad_"), args=[value]):
            yield value
        case ast.If(test=test, body=body):
            inside = (value for one in body for part in ast.walk(one) for value in _thaws(part))
            if any(isinstance(value, ast.Constant) and value.value is True for value in inside):
                yield test


#: A part of the name of what counts the steps of a training.
_COUNTS = re.compile(r"(^|_)(epochs?|steps?|iters?|iterations?|global_?step)($|_)", re.IGNORECASE)


def _is_of_numbers(value: ast.Compare) -> bool:
    """Return True for a comparison of the number of epochs or steps: an order, or an equality to a
    number."""
    named = [one for one in ast.walk(value) if isinstance(one, ast.Name | ast.Attribute)]
    if not any(_COUNTS.search(last_name(one)) for one in named):
        return False
    if all(isinstance(one, ast.Gt | ast.GtE | ast.Lt | ast.LtE) for one in value.ops):
        return True
    sides = (value.left, *value.comparators)
    numbers = [one for one in sides if isinstance(one, ast.Constant) and type(one.value) is int]
    return bool(numbers) and all(isinstance(one, ast.Eq) for one in value.ops)


def reset_returns() -> Iterator[LoopFact]:
    """Yield discounted returns, ``R = r + gamma * R``, that the same loop of the main module's file
    sets to a number before, so that they never have more than one reward."""
    file, tree = main_text() or ("", ast.Module([], []))
    for loop in ast.walk(tree):
        numbers: dict[str, ast.stmt] = {}
        for one in loop.body if isinstance(loop, ast.For) and _is_backwards(loop.iter) else ():
            match one:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=number)) if (
                    type(number) in (int, float)
                ):
                    numbers[name] = one
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                    name in numbers and _is_discounted(value, name)
                ):
                    words = ast.unparse(numbers[name]), ast.unparse(one)
                    line = f"{shown(file)}:{numbers[name].lineno}"
                    yield LoopFact("reset-return", name, words=words, location=line)
                case _:
                    written = {
                        node.id
                        for node in ast.walk(one)
                        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                    }
                    numbers = {name: at for name, at in numbers.items() if name not in written}


def _is_backwards(iterable: ast.expr) -> bool:
    """Return True for a loop over something reversed, and for ``range(…, -1)``."""
    match iterable:
        case ast.Call(func=ast.Name(id="range"), args=[_, _, ast.UnaryOp(op=ast.USub())]):
            return True
        case ast.Call(func=ast.Name(id="reversed")):
            return True
    return _is_reversed(iterable)


def _is_reversed(iterable: ast.expr) -> bool:
    """Return True for ``reversed(x)`` and ``x[::-1]``."""
    match iterable:
        case ast.Call(func=ast.Name(id="reversed"), args=[ast.Name() | ast.Attribute()]):
            return True
        case ast.Subscript(value=ast.Name() | ast.Attribute(), slice=part):
            return ast.unparse(part) == "::-1"
    return False


def _is_discounted(value: ast.expr, name: str) -> bool:
    """Return True for a reward plus a factor times the variable itself, ``r + gamma * R``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return False
    for side in (value.left, value.right):
        match side:
            case ast.BinOp(op=ast.Mult()) if name in _names(side, ast.Load):
                return True
    return False


#: Calls that make an array of a list.
_ARRAYS = frozenset({"tensor", "as_tensor", "FloatTensor", "Tensor", "array", "stack", "cat"})
_TURNS = frozenset({"reversed", "flip", "flipud", "deque", "reverse", "insert", "appendleft"})


def _is_used(name: str, scope: ast.AST, loop: ast.For) -> bool:
    """Return True if a function computes with a list that one of its loops fills, and turns nothing
    round but what that loop runs over. The list itself may not be returned: its caller may turn
    it round."""
    own = {id(one) for one in ast.walk(loop.iter)}
    used = False
    for node in ast.walk(scope):
        if id(node) in own:
            continue
        match node:
            case ast.Call(func=function, args=args):
                if last_name(function) in _TURNS:
                    return False
                arrays = last_name(function) in _ARRAYS or last_name(function) == "zip"
                used = used or (arrays and any(name in _names(one, ast.Load) for one in args))
            case ast.Subscript(slice=part) if "-1" in ast.unparse(part):
                return False
            case ast.BinOp(op=ast.Mult()):
                used = used or name in _names(node, ast.Load)
            case ast.Return(value=value) if value is not None and name in _names(value, ast.Load):
                if not _multiplies(value, name):
                    return False
    return used


def _multiplies(value: ast.expr, name: str) -> bool:
    """Return True if an expression has a product with a variable."""
    products = (one for one in ast.walk(value) if isinstance(one, ast.BinOp))
    return any(isinstance(p.op, ast.Mult) and name in _names(p, ast.Load) for p in products)


def written_views() -> Iterator[LoopFact]:
    """Yield views such as ``x.reshape(c, h, w)`` after ``h, w, c = x.shape`` in the main module's
    file: the sizes change places, the numbers do not."""
    file, tree = main_text() or ("", ast.Module([], []))
    for block in _bodies(tree):
        for call, sizes in _swapped(block):
            words = ast.unparse(call), ", ".join(sizes)
            yield LoopFact("written-view", words=words, location=f"{shown(file)}:{call.lineno}")


def _swapped(block: Sequence[ast.stmt]) -> Iterator[tuple[ast.Call, list[str]]]:
    """Yield each view of a block that swaps the sizes of an array, with the names of these sizes in
    their true order.

    Functions inside have variables of their own. A padded array is silent: such a view shifts its
    rows, as relative positions do in attention.
    """
    known: dict[str, list[str]] = {}
    padded: set[str] = set()
    for statement in block:
        assigned = statement.value if isinstance(statement, ast.Assign) else statement
        known = _without(known, _changed(assigned))
        for node in _of_scope(assigned):
            array, after = _view(node)
            before = known.get(array, [])
            if isinstance(node, ast.Call) and after != before and sorted(after) == sorted(before):
                yield node, before
        known = _without(known, _changed(statement))
        match statement:
            case ast.Assign(targets=[ast.Name(id=array)], value=value):
                calls = (one for one in ast.walk(value) if isinstance(one, ast.Call))
                pads = any(part in last_name(c.func) for c in calls for part in _PADS)
                padded = padded | {array} if pads else padded - {array}
            case ast.Assign(
                targets=[ast.Tuple(elts=names)],
                value=ast.Attribute(value=ast.Name(id=array), attr="shape")
                | ast.Call(func=ast.Attribute(value=ast.Name(id=array), attr="size"), args=[]),
            ):
                sizes = [one.id for one in names if isinstance(one, ast.Name)]
                if len(set(sizes)) == len(names) and array not in padded:
                    known[array] = sizes


#: Parts of the names of what makes an array larger.
_PADS = ("pad", "Pad", "cat", "stack")


def _changed(node: ast.AST) -> set[str]:
    """Return the variables that are set, or whose tensors are changed: ``x.t_()``, ``x.data =``."""
    found = _names(node, ast.Store)
    for one in ast.walk(node):
        match one:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr.endswith(
                "_"
            ):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store()):
                found.add(name)
    return found


def _without(known: dict[str, list[str]], changed: set[str]) -> dict[str, list[str]]:
    """Return the arrays with known sizes without those that changed, or whose sizes did."""
    return {
        array: sizes
        for array, sizes in known.items()
        if array not in changed and not changed & set(sizes)
    }


def _of_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all inside it, except functions and classes."""
    left = [node]
    while left:
        one = left.pop()
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        yield one
        left += ast.iter_child_nodes(one)


def _view(node: ast.AST) -> tuple[str, list[str]]:
    """Return the array and the sizes of a call as ``x.view(a, b)`` or ``torch.reshape(x, (a, b))``;
    "" and none if it is another one, or has other sizes than variables."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="torch" | "np" | "numpy"), attr="reshape"),
            args=[ast.Name(id=array), *given],
        ):
            pass
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=array), attr="reshape" | "view"), args=given
        ):
            pass
        case _:
            return "", []
    match given:
        case [ast.Tuple(elts=given) | ast.List(elts=given)]:
            pass
    names = [one.id for one in given if isinstance(one, ast.Name)]
    return (array, names) if len(names) == len(given) else ("", [])


def last_losses() -> Iterator[LoopFact]:
    """Yield ``loss.backward()`` after a loop that assigns ``loss`` anew for each batch, in the main
    module's file.

    A loop that carries a value from one iteration to the next, or ends early, is silent: its last
    loss may depend on all iterations.
    """
    found = main_text()
    if found is None:
        return
    file, tree = found
    for block in _bodies(tree):
        for name, line, summed in _dropped(block):
            words = ("sum",) if summed else ()
            yield LoopFact("last-loss", name, words=words, location=f"{shown(file)}:{line}")


def _dropped(block: Sequence[ast.stmt]) -> Iterator[tuple[str, int, bool]]:
    """Yield each loss that a loop of the block computes, and the line of its backward, if that
    comes only after the loop.

    If the block sets it to 0 before the loop, a sum was meant: then yield True, and the line that
    assigns it in the loop.
    """
    for place, loop in enumerate(block):
        if not isinstance(loop, ast.For) or not _is_fresh(loop):
            continue
        made = _assigned(loop.body)
        for after in block[place + 1 :]:
            name = _propagated(after)
            if name in made and not _calls_backward(loop):
                zeroed = name in _zeroed(block[:place])
                line = next((o.lineno for o in assignments(loop, name)), 0) if zeroed else 0
                yield name, line or after.lineno, line > 0
                break
            if name is not None or _assigned([after]) & made:
                break


def _zeroed(block: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that a block sets to 0."""
    return {
        one.targets[0].id
        for one in block
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
        and one.value.value == 0
    }


def inverted_ratios() -> Iterator[LoopFact]:
    """Yield ``exp(old - new)`` in the main module's file, for a ratio of probabilities that the
    script clamps, as in PPO: the new policy's belongs above the old one's."""
    file, tree = main_text() or ("", ast.Module([], []))
    clamped = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node.func) in ("clamp", "clip")
        for name in _names(node, ast.Load)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call) if (
                name in clamped and last_name(call.func) == "exp"
            ):
                of = call.func.value if isinstance(call.func, ast.Attribute) else None
                for one in (*call.args, of):
                    match one:
                        case ast.BinOp(left=left, op=ast.Sub(), right=right):
                            logs = _is_log(left) and _is_log(right)
                            if logs and _is_old(left) and not _is_old(right):
                                words = (ast.unparse(call),)
                                line = f"{shown(file)}:{call.lineno}"
                                yield LoopFact("inverted-ratio", name, words=words, location=line)


_OLD = re.compile(r"(?<![A-Za-z])old(?![a-z])|(?<=[a-z])Old")
_LOG = re.compile(r"log|prob|lp", re.IGNORECASE)


def _is_old(node: ast.expr) -> bool:
    return _OLD.search(ast.unparse(node)) is not None


def _is_log(node: ast.expr) -> bool:
    return _LOG.search(ast.unparse(node)) is not None


def _is_fresh(loop: ast.For) -> bool:
    """Return True if no iteration reads what an earlier one assigned, or ends the loop."""
    if any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(loop)):
        return False
    stored = _assigned(loop.body)
    known = _names(loop.target, ast.Store)
    for node in _in_order(loop.body):
        if _names(node, ast.Load) & (stored - known):
            return False
        if isinstance(node, ast.stmt):
            known |= _assigned([node])
    return True


def _in_order(block: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the simple statements of a block, and the headers of its compound statements."""
    for statement in block:
        inside = [one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.stmt)]
        if not inside:
            yield statement
            continue
        yield from (one for one in ast.iter_child_nodes(statement) if one not in inside)
        yield from _in_order(inside)


def _assigned(block: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that plain assignments set; a sum such as ``total += x`` is left out."""
    return {
        name
        for statement in block
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in _names(target, ast.Store)
    }


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def _propagated(statement: ast.stmt) -> str | None:
    """Return the variable of ``loss.backward()``, ``scaler.scale(loss).backward()`` or
    ``accelerator.backward(loss)``; None for another statement."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=of, attr="backward"), args=args)):
            match of, args:
                case _, [ast.Name(id=name), *_]:
                    return name
                case ast.Name(id=name), _:
                    return name
                case ast.Call(args=[ast.Name(id=name)]), _:
                    return name
    return None


def _calls_backward(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(node))


def rebound_parameters() -> Iterator[LoopFact]:
    """Yield updates such as ``p = p - rate * p.grad`` in a loop over ``parameters()``, in the main
    module's file: they only set the loop's variable.

    A loop that uses the variable afterwards, as to collect the new tensors, is left out.
    """
    found = main_text()
    if found is None:
        return
    file, tree = found
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and _are_parameters(node.iter, tree):
            for name in _names(node.target, ast.Store):
                line = _rebound(node.body, name)
                if line:
                    yield LoopFact("rebound", name, location=f"{shown(file)}:{line}")


def _are_parameters(iterable: ast.expr, tree: ast.Module) -> bool:
    """Return True for an expression with ``parameters()``, for a list of variables, and for a
    variable that is only ever set to one of these.

    Others, as a data loader, give tensors that are no parameters.
    """
    if isinstance(iterable, ast.Name | ast.Attribute):
        made = [one.value for one in assignments(tree, ast.unparse(iterable))]
        return bool(made) and all(
            not isinstance(one, ast.Name | ast.Attribute) and _are_parameters(one, tree)
            for one in made
        )
    if isinstance(iterable, ast.List | ast.Tuple):
        return all(isinstance(one, ast.Name | ast.Attribute) for one in iterable.elts)
    return any(
        isinstance(one, ast.Call) and last_name(one.func) in _OF_PARAMETERS
        for one in ast.walk(iterable)
    )


_OF_PARAMETERS = frozenset({"parameters", "named_parameters"})


def _rebound(block: Sequence[ast.stmt], name: str) -> int:
    """Return the line of a block's last use of a variable, if it sets the variable to a new value
    from its gradient; else 0."""
    uses = [one for one in block if name in _names(one, ast.Load) | _names(one, ast.Store)]
    match uses[-1:]:
        case [ast.If(body=inside, orelse=[]) | ast.With(body=inside)]:
            return _rebound(inside, name)
        case [ast.Assign(targets=[ast.Name(id=stored)], value=value) as last] if stored == name:
            reads = any(
                isinstance(one, ast.Attribute)
                and one.attr == "grad"
                and isinstance(one.value, ast.Name)
                and one.value.id == name
                for one in ast.walk(value)
            )
            # `p = p.sub_(…)` is an update in place.
            in_place = any(
                isinstance(one, ast.Attribute) and one.attr.endswith("_") for one in ast.walk(value)
            )
            return last.lineno if reads and not in_place else 0
    return 0


def overfitted_batches() -> Iterator[LoopFact]:
    """Yield the calls in the main module's file with ``overfit_batches`` of Lightning's Trainer."""
    file, tree = main_text() or ("", ast.Module([], []))
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="overfit_batches", value=ast.Constant(value=count)) if count:
                line = f"{shown(file)}:{node.lineno}"
                yield LoopFact("overfitted", words=(ast.unparse(node),), location=line)


_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"})
_FUNCTIONAL = frozenset({"F", "functional", "nn.functional", "torch.nn.functional"})


def written_dropout(modules: Iterable[nn.Module]) -> Iterator[LoopFact]:
    """Yield the calls in a model's classes that the script itself defines.

    A call inside an ``if`` on ``training`` is left out: it runs only in training.
    """
    for kind in dict.fromkeys(map(type, modules)):
        for file, owner in classes_of_script(kind):
            for call in _calls(owner):
                text, line = ast.unparse(call), f"{shown(file)}:{call.lineno}"
                yield LoopFact("written-dropout", words=(text,), location=line)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, ast.If | ast.IfExp) and "training" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Call) and last_name(node.func) in _DROPOUTS and _by_default(node):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _by_default(call: ast.Call) -> bool:
    """Return True if ``training`` is left at its default, which is True."""
    of = call.func.value if isinstance(call.func, ast.Attribute) else None
    if of is None or ast.unparse(of) not in _FUNCTIONAL or len(call.args) > 2:
        return False
    given = {keyword.arg for keyword in call.keywords}
    dropped = next((one.value for one in call.keywords if one.arg == "p"), None)
    dropped = call.args[1] if len(call.args) == 2 else dropped
    nothing = isinstance(dropped, ast.Constant) and dropped.value == 0
    return not given & {"training", None} and not nothing
