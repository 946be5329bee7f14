import fedloom as fl


class Middle:
    def __init__(self):
        self.seen = []

    def add(self, uploads):
        self.seen.append(uploads)

    def __bool__(self):
        return bool(self.seen)

    def result(self):
        def is_leaf(node):
            return isinstance(node, fl.Weighted)

        nodes, spec = fl.tree.flatten(fl.tree.cat(self.seen), is_leaf=is_leaf)
        return fl.tree.unflatten([self.mean(n.value) if is_leaf(n) else n for n in nodes], spec)

    def mean(self, value):
        def each(t):
            if not t.is_floating_point():
                return t[0]
            ordered = t.sort(0).values
            return (ordered[1:-1] if len(t) >= 3 else ordered).mean(0)

        return fl.tree.map_tree(each, value)


class Rule(fl.Link):
    def total(self, question, total):
        return Middle()


class Cautious(fl.Part):
    links = (Rule(),)
